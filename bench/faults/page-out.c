// page-out MIB: a mobile emulator which tells the kernel to page its files out, madvise(2) MADV_PAGEOUT, when an app goes to
// the background, and reads them again at once, over and over: a mapped file of MIB.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

int main(int argc, char **argv) {
	long mib = argc > 1 ? atol(argv[1]) : 160, size = mib << 20, sum = 0;
	static char b[1 << 20];
	int fd = open("/data/app", O_RDWR | O_CREAT, 0600);
	if (fd < 0 || mib < 1 || mib > 400) { perror("open"); return 1; }
	for (long i = 0; i < mib; i++) { memset(b, (int)i, sizeof b); if (pwrite(fd, b, sizeof b, i << 20) < 0) { perror("write"); return 1; } }
	fsync(fd);
	char *m = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	if (m == MAP_FAILED) { perror("mmap"); return 1; }
	for (int n = 0;; n++) {
		for (long i = 0; i < size; i += 4096) sum += ((volatile char *)m)[i];
		if (madvise(m, size, MADV_PAGEOUT)) { perror("madvise"); return 1; }
		if (n == 0) { printf("ready\n"); fflush(stdout); }
	}
	return (int)sum;
}
