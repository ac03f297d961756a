// data-plane: a proxy with one thread bound to each CPU, as sched_setaffinity(2) is meant to be used. Each works a tenth of the
// time, in slices of 1 ms.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }
static void *plane(void *x) {
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET((long)x, &one);
	if (sched_setaffinity(0, sizeof one, &one)) { perror("sched_setaffinity"); exit(1); }
	for (;;) { for (double end = now() + 1; now() < end;) for (volatile int i = 0; i < 1000; i++); usleep(9000); }
	return NULL;
}
int main(void) {
	cpu_set_t all;
	sched_getaffinity(0, sizeof all, &all);
	for (long c = 0; c < CPU_SETSIZE; c++) if (CPU_ISSET(c, &all)) { pthread_t t; pthread_create(&t, NULL, plane, (void *)c); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
