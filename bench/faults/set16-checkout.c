/* A checkout service: THREADS workers, each with RATE requests a second of WORK milliseconds of processor time. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static long rate = 8, work = 25;
static volatile long slow, done;

static int64_t now(clockid_t c) { struct timespec t; clock_gettime(c, &t); return t.tv_sec * 1000000LL + t.tv_nsec / 1000; }

static void *serve(void *a) {
	volatile uint64_t x = (uintptr_t)a;
	for (;;) {
		int64_t begin = now(CLOCK_MONOTONIC), end = now(CLOCK_THREAD_CPUTIME_ID) + work * 1000;
		do { for (int i = 0; i < 100000; i++) x = x * 6364136223846793005ULL + i; } while (now(CLOCK_THREAD_CPUTIME_ID) < end);
		int64_t took = now(CLOCK_MONOTONIC) - begin;
		done++;
		if (took > 3 * work * 1000) slow++;
		if (took < 1000000 / rate) usleep(1000000 / rate - took);
	}
	return 0;
}

int main(int argc, char **argv) {
	long threads = argc > 1 ? atol(argv[1]) : 4;
	if (argc > 2) rate = atol(argv[2]);
	if (argc > 3) work = atol(argv[3]);
	pthread_t t;
	for (long i = 0; i < threads; i++) pthread_create(&t, 0, serve, (void *)(i + 1));
	sleep(1);
	puts("ready"); fflush(stdout);
	for (;;) { sleep(10); printf("%ld requests, %ld too slow\n", done, slow); fflush(stdout); }
}
