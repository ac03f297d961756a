// gcpause THREADS WORK_MS EVERY_MS: a managed runtime serves requests with one thread; every EVERY_MS its collector
// runs on THREADS threads (it counted the CPUs of a larger host), WORK_MS of CPU time each.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int threads, ms, every;
static pthread_barrier_t start, end;
static double used(void) { struct timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }
static void work(double w) { for (double e = used() + w; used() < e;) for (volatile int i = 0; i < 2000; i++); }
static void *gc(void *p) { for (;;) { pthread_barrier_wait(&start); work(ms); pthread_barrier_wait(&end); } return p; }
static void *serve(void *p) { for (;;) { work(1); usleep(12000); } return p; }

int main(int argc, char **argv) {
	pthread_t t;
	if (argc < 4) return 2;
	threads = atoi(argv[1]); ms = atoi(argv[2]); every = atoi(argv[3]);
	pthread_barrier_init(&start, NULL, threads + 1);
	pthread_barrier_init(&end, NULL, threads + 1);
	for (int i = 0; i < threads; i++) if (pthread_create(&t, NULL, gc, NULL)) return 1;
	if (pthread_create(&t, NULL, serve, NULL)) return 1;
	printf("ready\n");
	fflush(stdout);
	for (;;) { pthread_barrier_wait(&start); pthread_barrier_wait(&end); usleep(every * 1000); }
}
