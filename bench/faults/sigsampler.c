// sigsampler THREADS HZ: a profiling library in a service has a timer for each of its THREADS that sends it SIGPROF HZ times a
// second, timer_create(2) with SIGEV_THREAD_ID, by the wall clock and so also in idle threads. The handler stores one sample.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif
static int hz;
static volatile unsigned long ring[1024];
static void sample(int s, siginfo_t *i, void *c) { (void)s; (void)i; static unsigned k; ring[k++ % 1024] = (unsigned long)c; }
static void *idle(void *p) {
	struct sigevent e;
	timer_t t;
	struct itimerspec v = {{0, 1000000000L / hz}, {0, 1000000000L / hz}};
	memset(&e, 0, sizeof e);
	e.sigev_notify = SIGEV_THREAD_ID;
	e.sigev_signo = SIGPROF;
	e.sigev_notify_thread_id = syscall(SYS_gettid);
	if (timer_create(CLOCK_MONOTONIC, &e, &t) || timer_settime(t, 0, &v, NULL)) { perror("timer"); exit(1); }
	for (;;) pause();
	return p;
}
int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 40;
	struct sigaction a;
	hz = argc > 2 ? atoi(argv[2]) : 5000;
	memset(&a, 0, sizeof a);
	a.sa_sigaction = sample;
	a.sa_flags = SA_SIGINFO | SA_RESTART;
	sigaction(SIGPROF, &a, NULL);
	for (int i = 0; i < n; i++) { pthread_t t; pthread_create(&t, NULL, idle, NULL); }
	printf("ready\n");
	fflush(stdout);
	for (;;) sleep(1000);
}
