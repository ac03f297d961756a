// condall THREADS: a pool of THREADS workers waits on one condition variable, and the dispatcher wakes all of them for each job
// (notify_all); one takes it, all others take the mutex, see nothing and sleep again.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static int jobs;
static void *worker(void *p) {
	for (;;) {
		pthread_mutex_lock(&m);
		while (!jobs) pthread_cond_wait(&c, &m);
		jobs--;
		pthread_mutex_unlock(&m);
	}
	return p;
}
int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 200;
	pthread_attr_t a;
	pthread_attr_init(&a);
	pthread_attr_setstacksize(&a, 65536);
	for (int i = 0; i < n; i++) { pthread_t t; if (pthread_create(&t, &a, worker, NULL)) break; }
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		pthread_mutex_lock(&m);
		jobs = 1;
		pthread_mutex_unlock(&m);
		pthread_cond_broadcast(&c);
		usleep(200);
	}
}
