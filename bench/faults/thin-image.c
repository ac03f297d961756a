// thin-image GIB: a virtual machine with a sparse disk image of GIB, of which it uses 200 clusters of 64 KiB: it writes 20 a
// second and flushes them. The size of the file is more than the free space of the disk; its blocks are not.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
	static char b[65536];
	long size = (argc > 1 ? atol(argv[1]) : 500) << 30;
	int fd = open("/data/disk.img", O_RDWR | O_CREAT, 0600);
	if (fd < 0 || ftruncate(fd, size)) { perror("ftruncate"); return 1; }
	printf("ready\n");
	fflush(stdout);
	for (unsigned long n = 0;; n++) {
		memset(b, (int)n, sizeof b);
		if (pwrite(fd, b, sizeof b, size / 200 / 65536 * 65536 * (n * 77 % 200)) < 0) { perror("write"); return 1; }
		if (n % 20 == 19) fdatasync(fd);
		usleep(50000);
	}
}
