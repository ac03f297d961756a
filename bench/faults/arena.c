// arena THREADS: threads of one process take a buffer of 256 KiB for each request, use two of
// its pages and return it, as malloc(3) does above M_MMAP_THRESHOLD, mallopt(3). Each
// mmap(2), munmap(2) and page fault needs the lock of the one address space.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIZE (256UL << 10)

static void *work(void *p) {
	for (;;) {
		char *m = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (m == MAP_FAILED) continue;
		m[0] = m[SIZE - 1] = 1;
		munmap(m, SIZE);
	}
	return p;
}

int main(int argc, char **argv) {
	int threads = argc > 1 ? atoi(argv[1]) : 0;
	if (threads < 1 || threads > 64) { fprintf(stderr, "usage: arena THREADS\n"); return 2; }
	for (int i = 0; i < threads; i++) { pthread_t t; if (pthread_create(&t, NULL, work, NULL)) { perror("pthread_create"); return 1; } }
	printf("ready\n");
	fflush(stdout);
	pause();
	return 0;
}
