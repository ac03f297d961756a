// poolmild: 64 threads of a server wait for jobs, of which 500 come in a second, each of 0.1 ms; one thread wakes for each.
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static pthread_mutex_t l = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static int jobs;
static void *work(void *p) {
	for (;;) {
		pthread_mutex_lock(&l);
		while (!jobs) pthread_cond_wait(&c, &l);
		jobs--;
		pthread_mutex_unlock(&l);
		for (volatile int i = 0; i < 60000; i++);
	}
	return p;
}
int main(void) {
	for (int i = 0; i < 64; i++) { pthread_t t; pthread_create(&t, NULL, work, NULL); }
	printf("ready\n");
	fflush(stdout);
	for (;; usleep(2000)) { pthread_mutex_lock(&l); jobs++; pthread_mutex_unlock(&l); pthread_cond_signal(&c); }
}
