// set12-quota: an API server with a thread pool of the host's size under a small CPU limit. Each request is spread over 4
// threads, 30 ms of CPU each, three times a second: on average below its limit, yet throttled in each burst.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static double cpu(void) { struct timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static pthread_barrier_t start, end;
static void *worker(void *p) {
	for (;;) {
		pthread_barrier_wait(&start);
		for (double until = cpu() + 0.03; cpu() < until;) for (volatile int i = 0; i < 2000; i++);
		pthread_barrier_wait(&end);
	}
	return p;
}
int main(void) {
	pthread_barrier_init(&start, NULL, 5);
	pthread_barrier_init(&end, NULL, 5);
	for (int i = 0; i < 4; i++) { pthread_t t; pthread_create(&t, NULL, worker, NULL); }
	printf("ready\n");
	fflush(stdout);
	for (unsigned n = 0;; n++) {
		double t = now();
		pthread_barrier_wait(&start);
		pthread_barrier_wait(&end);
		t = now() - t;
		if (n % 10 == 0) { printf("request took %.0f ms\n", t * 1e3); fflush(stdout); }
		if (t < 0.3) usleep((0.3 - t) * 1e6);
	}
}
