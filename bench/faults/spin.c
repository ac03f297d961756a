// spin THREADS ON_MS OFF_MS [NICE | fifo | memory] uses CPU time: each thread calculates for
// ON_MS, then sleeps for OFF_MS, both in milliseconds. With "fifo" it does so at real-time priority,
// sched(7); with "memory" it copies 32 MiB back and forth instead of calculating.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static long on, off;
static int copies;
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }
static void *work(void *p) {
	size_t n = 32 << 20;
	char *a = copies ? malloc(2 * n) : NULL;
	for (;;) {
		for (double until = now() + on; now() < until;) {
			if (a) memcpy(a, a + n, n), memcpy(a + n, a, n);
			else for (volatile int i = 0; i < 20000; i++);
		}
		if (off) usleep(off * 1000);
	}
	return p;
}

int main(int argc, char **argv) {
	if (argc < 4) { fprintf(stderr, "usage: spin THREADS ON_MS OFF_MS [NICE | fifo | memory]\n"); return 2; }
	on = atol(argv[2]); off = atol(argv[3]);
	if (argc > 4 && strcmp(argv[4], "fifo") == 0) {
		struct sched_param p = {.sched_priority = 10};
		if (off < on) { fprintf(stderr, "real-time threads must sleep half of the time\n"); return 2; }
		if (sched_setscheduler(0, SCHED_FIFO, &p)) { perror("sched_setscheduler"); return 1; }
	} else if (argc > 4 && strcmp(argv[4], "memory") == 0) copies = 1;
	else if (argc > 4 && setpriority(PRIO_PROCESS, 0, atoi(argv[4]))) { perror("setpriority"); return 1; }
	for (int i = 0; i < atoi(argv[1]); i++) { pthread_t t; pthread_create(&t, NULL, work, NULL); }
	printf("ready\n");
	fflush(stdout);
	pause();
	return 0;
}
