// prof99 HZ: a service under a profiler that sends SIGPROF to each of its eight threads HZ times a second, as continuous profilers do. The threads work a little.
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
static int hz = 99;
static volatile long samples;
static void sample(int s) { samples += s; }
static void *work(void *p) {
	struct sigevent e;
	timer_t t;
	struct itimerspec v = {{0, 1000000000L / hz}, {0, 1000000000L / hz}};
	memset(&e, 0, sizeof e);
	e.sigev_notify = SIGEV_THREAD_ID;
	e.sigev_signo = SIGPROF;
	e.sigev_notify_thread_id = syscall(SYS_gettid);
	if (timer_create(CLOCK_MONOTONIC, &e, &t) || timer_settime(t, 0, &v, NULL)) perror("timer");
	for (;;) { for (volatile int i = 0; i < 200000; i++); usleep(30000); }
	return p;
}
int main(int argc, char **argv) {
	struct sigaction a;
	if (argc > 1) hz = atoi(argv[1]);
	memset(&a, 0, sizeof a);
	a.sa_handler = sample;
	a.sa_flags = SA_RESTART;
	sigaction(SIGPROF, &a, NULL);
	for (int i = 0; i < 8; i++) { pthread_t t; pthread_create(&t, NULL, work, NULL); }
	printf("ready\n");
	fflush(stdout);
	for (;;) sleep(1000);
}
