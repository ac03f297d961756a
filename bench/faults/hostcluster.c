// hostcluster BUSY_MS IDLE_MS: the cluster manager of the host runs at real-time priority (SCHED_RR), and each of its two threads spins for BUSY_MS in
// a retransmit loop, then sleeps for IDLE_MS. It moves to the root group of cgroup v1, as others may have no real-time priority. Without the right to it, it takes nice -20.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
static long busy, idle;
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }
static void *ring(void *p) {
	for (;;) {
		for (double end = now() + busy; now() < end;) for (volatile int i = 0; i < 5000; i++);
		usleep(idle * 1000);
	}
	return p;
}
int main(int argc, char **argv) {
	{ FILE *f = fopen("/sys/fs/cgroup/cpu/cgroup.procs", "w"); if (!f || fprintf(f, "0") < 0 || fclose(f)) perror("cpu"); }
	struct sched_param r = {.sched_priority = 50};
	busy = argc > 1 ? atol(argv[1]) : 60; idle = argc > 2 ? atol(argv[2]) : 40;
	if (idle * 3 < busy * 2 - 1) idle = busy * 2 / 3; // at most 60 %
	if (sched_setscheduler(0, SCHED_RR, &r)) { perror("sched_setscheduler"); if (setpriority(PRIO_PROCESS, 0, -20)) perror("setpriority"); }
	for (int i = 0; i < 2; i++) { pthread_t t; pthread_create(&t, NULL, ring, NULL); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
