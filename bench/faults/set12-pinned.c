// set12-pinned: a proxy with worker_cpu_affinity auto: its only worker is bound to CPU 0, as is that of each other replica.
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
int main(void) {
	cpu_set_t s;
	CPU_ZERO(&s);
	CPU_SET(0, &s);
	if (sched_setaffinity(0, sizeof s, &s)) perror("sched_setaffinity");
	printf("ready\n");
	fflush(stdout);
	for (;;) { for (double end = now() + 0.19; now() < end;) for (volatile int i = 0; i < 1000; i++); usleep(10000); }
}
