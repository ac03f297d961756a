/* A healthy web service at about 40 % of a CPU: 100 requests a second of 4 ms each. */
#include <stdio.h>
#include <time.h>
static double now(clockid_t c) {
	struct timespec t;
	clock_gettime(c, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}
int main(void) {
	volatile double x = 1;
	puts("ready"); fflush(stdout);
	for (;;) {
		double s = now(CLOCK_PROCESS_CPUTIME_ID), w = now(CLOCK_MONOTONIC);
		while (now(CLOCK_PROCESS_CPUTIME_ID) - s < 4) for (int i = 0; i < 5000; i++) x = x * 1.0000001 + 0.5;
		double rest = 10 - (now(CLOCK_MONOTONIC) - w);
		struct timespec t = {0, rest > 0 ? (long)(rest * 1e6) : 1000};
		nanosleep(&t, 0);
	}
}
