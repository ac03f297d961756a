// merge MIB WRITES_PER_SECOND: a virtual machine offers its memory for merging, madvise(2),
// MADV_MERGEABLE, and changes it all the time, so the kernel's ksmd compares it without end.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long mib = argc > 2 ? atol(argv[1]) : 0, rate = argc > 2 ? atol(argv[2]) : 0;
	if (mib < 1 || mib > 512 || rate < 1) { fprintf(stderr, "usage: merge MIB WRITES_PER_SECOND\n"); return 2; }
	size_t pages = (size_t)mib << 8;
	char *m = mmap(NULL, pages << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m == MAP_FAILED || madvise(m, pages << 12, MADV_MERGEABLE) != 0) { perror("mergeable memory"); return 1; }
	for (size_t i = 0; i < pages; i++) memset(m + (i << 12), (int)(i % 251), 4096);
	printf("ready\n");
	fflush(stdout);
	for (unsigned n = 1;; n++) {
		for (long i = 0; i < rate / 100; i++) m[((size_t)random() % pages) << 12] = (char)n;
		usleep(10000);
	}
}
