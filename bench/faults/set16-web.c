/* A small web service: RATE requests a second, each of WORK microseconds of processor time. */
#include <stdio.h>
#include <stdlib.h>
#include <stdint.h>
#include <time.h>

static int64_t now(clockid_t c) { struct timespec t; clock_gettime(c, &t); return t.tv_sec * 1000000000LL + t.tv_nsec; }

int main(int argc, char **argv) {
	double rate = argc > 1 ? atof(argv[1]) : 50;
	int64_t work = (argc > 2 ? atoll(argv[2]) : 1000) * 1000;
	int64_t step = (int64_t)(1e9 / rate), next = now(CLOCK_MONOTONIC), worst = 0, report = next + 10000000000LL;
	volatile uint64_t x = 1;
	long n = 0, slow = 0;
	puts("ready"); fflush(stdout);
	for (;;) {
		next += step;
		struct timespec t = { next / 1000000000LL, next % 1000000000LL };
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
		int64_t end = now(CLOCK_THREAD_CPUTIME_ID) + work;
		do { for (int i = 0; i < 40000; i++) x = x * 6364136223846793005ULL + i; } while (now(CLOCK_THREAD_CPUTIME_ID) < end);
		int64_t done = now(CLOCK_MONOTONIC), took = done - next;
		if (took > worst) worst = took;
		if (took > 4 * work) slow++;
		n++;
		if (done > next + 2000000000LL) next = done;
		if (done > report) {
			printf("%ld requests, %ld slow, worst %lld ms\n", n, slow, (long long)(worst / 1000000)); fflush(stdout);
			n = slow = worst = 0; report = done + 10000000000LL;
		}
	}
}
