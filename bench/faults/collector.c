// collector THREADS MS EVERY_MS: a service whose garbage collector has as many threads as a
// large host has CPUs. Every EVERY_MS each of them works for MS milliseconds of CPU time, and the
// request waits for all. A quota below that stops all of them until the next period,
// Documentation/scheduler/sched-bwc.rst.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static double ms;
static pthread_barrier_t begin, end;
static double used(void) { struct timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }
static void *work(void *p) {
	for (;;) {
		pthread_barrier_wait(&begin);
		for (double until = used() + ms; used() < until;) for (volatile int i = 0; i < 20000; i++);
		pthread_barrier_wait(&end);
	}
	return p;
}

int main(int argc, char **argv) {
	int threads = argc > 1 ? atoi(argv[1]) : 0, every = argc > 3 ? atoi(argv[3]) : 0;
	ms = argc > 2 ? atof(argv[2]) : 0;
	if (threads < 1 || threads > 64 || ms <= 0 || every < 1) { fprintf(stderr, "usage: collector THREADS MS EVERY_MS\n"); return 2; }
	pthread_barrier_init(&begin, NULL, threads + 1);
	pthread_barrier_init(&end, NULL, threads + 1);
	for (int i = 0; i < threads; i++) { pthread_t t; if (pthread_create(&t, NULL, work, NULL)) { perror("pthread_create"); return 1; } }
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		pthread_barrier_wait(&begin);
		pthread_barrier_wait(&end);
		usleep(every * 1000);
	}
}
