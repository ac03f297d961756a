// cowgc WORKERS MIB RATE_KIB: a server forks WORKERS after it has loaded MIB of code and data, which they share. The collector of
// each worker marks objects in place, so RATE_KIB of shared pages a second become private in each, until all are.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
	int workers = argc > 1 ? atoi(argv[1]) : 6;
	long size = (argc > 2 ? atol(argv[2]) : 50) << 20, rate = argc > 3 ? atol(argv[3]) : 700;
	char *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m == MAP_FAILED) { perror("mmap"); return 1; }
	madvise(m, size, MADV_NOHUGEPAGE);
	for (long i = 0; i < size; i += 64) m[i] = i;
	for (int w = 0; w < workers; w++) if (fork() == 0) {
		for (long done = 0;; usleep(100000)) for (long k = 0; k < rate / 40 && done < size; k++, done += 4096) m[done]++;
	}
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
