// framebufs THREADS MIB: a remote desktop allocates a new shared buffer for each frame, memfd_create(2), instead of reusing them: the
// kernel zeroes MIB of pages, maps each at a fault and frees them, as often as it can in each of THREADS threads.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
static long size;
static void *render(void *p) {
	for (;;) {
		int f = memfd_create("frame", MFD_CLOEXEC);
		if (f < 0 || ftruncate(f, size)) { perror("memfd"); exit(1); }
		char *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
		if (m == MAP_FAILED) { perror("mmap"); exit(1); }
		for (long i = 0; i < size; i += 1024) m[i] = i;
		munmap(m, size);
		close(f);
	}
	return p;
}
int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 3;
	size = (argc > 2 ? atol(argv[2]) : 16) << 20;
	for (int i = 0; i < n; i++) { pthread_t t; pthread_create(&t, NULL, render, NULL); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
