// crunch THREADS ON_MS OFF_MS KIB: each thread works on KIB of memory for ON_MS, then waits for OFF_MS.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static double on; static long off; static size_t words;
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }
static void *work(void *p) {
	uint32_t *a = calloc(words, 4), x = 12345 + (uintptr_t)p;
	if (!a) exit(1);
	for (;;) {
		for (double end = now() + on; now() < end;)
			for (int i = 0; i < 5000; i++) { x ^= x << 13; x ^= x >> 17; x ^= x << 5; a[x % words] += x * 2654435761u; }
		if (off) usleep(off * 1000);
	}
}
int main(int argc, char **argv) {
	if (argc < 5) return 2;
	on = atof(argv[2]); off = atol(argv[3]); words = atol(argv[4]) * 256;
	for (long i = 0; i < atol(argv[1]); i++) { pthread_t t; if (pthread_create(&t, NULL, work, (void *)i)) return 1; }
	printf("ready\n"); fflush(stdout);
	pause();
	return 0;
}
