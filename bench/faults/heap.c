// heap LOW HIGH PER_SECOND: the heap of a runtime. It grows from LOW to HIGH mebibytes by
// PER_SECOND mebibytes a second, is collected, madvise(2): MADV_DONTNEED, and grows again.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB (1UL << 20)

int main(int argc, char **argv) {
	long low = argc > 1 ? atol(argv[1]) : 0, high = argc > 2 ? atol(argv[2]) : 0, rate = argc > 3 ? atol(argv[3]) : 0;
	if (low < 1 || high <= low || high > 1000 || rate < 1) { fprintf(stderr, "usage: heap LOW HIGH PER_SECOND\n"); return 2; }
	char *m = mmap(NULL, high * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m == MAP_FAILED) { perror("mmap"); return 1; }
	memset(m, 1, low * MIB);
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		for (long n = low; n < high; n++) { memset(m + n * MIB, 1, MIB); usleep(1000000 / rate); }
		madvise(m + low * MIB, (high - low) * MIB, MADV_DONTNEED);
	}
}
