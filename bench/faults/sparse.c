// sparse MIB: an image tool asks for the next hole of an image in memory before each block that it
// copies, lseek(2), SEEK_HOLE. The image has no hole, so the kernel walks all of its pages.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long mib = argc > 1 ? atol(argv[1]) : 0;
	static char block[1 << 20];
	if (mib < 1 || mib > 512) { fprintf(stderr, "usage: sparse MIB\n"); return 2; }
	int fd = memfd_create("image", 0);
	memset(block, 1, sizeof block);
	for (long i = 0; i < mib; i++)
		if (write(fd, block, sizeof block) != sizeof block) { perror("image"); return 1; }
	printf("ready\n");
	fflush(stdout);
	for (off_t at = 0;; at = (at + 4096) % (off_t)sizeof block) {
		if (lseek(fd, at, SEEK_HOLE) != (off_t)mib << 20) { perror("lseek"); return 1; }
		if (pread(fd, block, 4096, at) != 4096) { perror("pread"); return 1; }
	}
}
