/* A pool worker: THREADS threads hash a scratchpad each, without a pause. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *hash(void *a) {
	size_t n = 1 << 18;
	volatile uint64_t *pad = malloc(n * 8);
	uint64_t x = (uintptr_t)a * 0x9e3779b97f4a7c15ULL + 1;
	for (size_t i = 0; i < n; i++) pad[i] = x += i;
	for (;;) {
		for (int i = 0; i < 100000; i++) {
			uint64_t k = x & (n - 1);
			x = (x ^ pad[k]) * 0xff51afd7ed558ccdULL; x ^= x >> 29;
			pad[k] = x;
		}
	}
	return 0;
}

int main(int argc, char **argv) {
	long threads = argc > 1 ? atol(argv[1]) : 4;
	pthread_t t;
	for (long i = 0; i < threads; i++) pthread_create(&t, 0, hash, (void *)(i + 1));
	sleep(1);
	puts("ready"); fflush(stdout);
	for (;;) { sleep(10); puts("accepted 12/12 diff 120001"); fflush(stdout); }
}
