// cpu-clock THREADS IDLE: a server with IDLE sleeping threads which charges each request for its CPU time: THREADS threads
// call clock_gettime(CLOCK_PROCESS_CPUTIME_ID), for which the kernel adds up the times of all threads, each time.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void *idle(void *x) { for (;;) pause(); return x; }
static void *request(void *x) {
	struct timespec a, b;
	for (;;) {
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
		for (volatile int i = 0; i < 100; i++);
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
	}
	return x;
}
int main(int argc, char **argv) {
	pthread_attr_t a;
	pthread_t t;
	if (argc < 3) return 2;
	pthread_attr_init(&a);
	pthread_attr_setstacksize(&a, 65536);
	for (int i = 0; i < atoi(argv[2]); i++) if (pthread_create(&t, &a, idle, NULL)) { perror("pthread_create"); return 1; }
	for (int i = 0; i < atoi(argv[1]); i++) pthread_create(&t, &a, request, NULL);
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
