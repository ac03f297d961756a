// linkstep THREADS WORK_MS EVERY_MS: each EVERY_MS a linker optimizes the whole program with THREADS threads for WORK_MS:
// each reads bitcode of 12 MiB, hashes and rearranges it.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#define SIZE (12 << 20)
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }
static long busy;
static void *partition(void *p) {
	unsigned *code = malloc(SIZE), h = 2166136261u;
	if (!code) return NULL;
	for (unsigned i = 0; i < SIZE / 4; i++) code[i] = i * 2654435761u;
	for (double end = now() + busy; now() < end;)
		for (unsigned i = 0; i < 20000; i++) { unsigned k = (h ^ i) % (SIZE / 4); h = (h ^ code[k]) * 16777619u; code[k] = h; }
	free(code);
	return p;
}
int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 6;
	busy = argc > 2 ? atol(argv[2]) : 1800;
	long every = argc > 3 ? atol(argv[3]) : 6000;
	pthread_t t[64];
	if (n > 64) n = 64;
	for (int first = 1;; first = 0) {
		double start = now();
		for (int i = 0; i < n; i++) pthread_create(&t[i], NULL, partition, NULL);
		if (first) { printf("ready\n"); fflush(stdout); }
		for (int i = 0; i < n; i++) pthread_join(t[i], NULL);
		double left = start + every - now();
		if (left > 0) usleep(left * 1000);
	}
}
