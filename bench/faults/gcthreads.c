// A runtime sized for 24 CPUs answers each request with 24 threads that collect garbage for 8 ms each, in a
// container that may use half a CPU: the quota is gone in each period, and requests wait for the next ones.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static pthread_barrier_t start, end;
static double cpu(void) { struct timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void work(double s) { for (double e = cpu() + s; cpu() < e;) for (volatile int i = 0; i < 1000; i++); }
static void *collect(void *none) {
	for (;;) { pthread_barrier_wait(&start); work(0.008); pthread_barrier_wait(&end); }
	return none;
}
int main(void) {
	pthread_t t;
	pthread_barrier_init(&start, NULL, 25);
	pthread_barrier_init(&end, NULL, 25);
	for (int i = 0; i < 24; i++) if (pthread_create(&t, NULL, collect, NULL)) return 1;
	if (write(1, "ready\n", 6) < 0) return 1;
	for (;;) { pthread_barrier_wait(&start); pthread_barrier_wait(&end); work(0.004); usleep(150000); }
}
