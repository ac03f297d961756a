// index MIB MEGABYTES: a search service whose index of MIB mebibytes is a mapped file, mmap(2), of
// which it reads random pages. It takes MEGABYTES for its heap first, so its container's memory
// limit leaves too little for the index: the kernel drops pages and reads them again.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long mib = argc > 1 ? atol(argv[1]) : 0, heap = argc > 2 ? atol(argv[2]) : 0;
	static char block[1 << 20];
	if (mib < 1 || mib > 1000 || heap < 1 || heap > 1000) { fprintf(stderr, "usage: index MIB MEGABYTES\n"); return 2; }
	int fd = open("/data/index", O_RDWR | O_CREAT, 0600);
	memset(block, 7, sizeof block);
	for (long i = 0; i < mib; i++) if (write(fd, block, sizeof block) < 0) { perror("/data/index"); return 1; }
	if (fsync(fd)) { perror("fsync"); return 1; }
	size_t size = (size_t)mib << 20;
	char *own = malloc((size_t)heap << 20), *index = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	if (!own || index == MAP_FAILED) { perror("mmap"); return 1; }
	memset(own, 1, (size_t)heap << 20);
	madvise(index, size, MADV_RANDOM);
	printf("ready\n");
	fflush(stdout);
	volatile unsigned sum = 0;
	for (unsigned seed = 1;;) {
		sum += index[4096 * ((size_t)rand_r(&seed) % (size / 4096))];
		own[(size_t)rand_r(&seed) % ((size_t)heap << 20)]++;
	}
}
