// A Go service under light load: its runtime interrupts its threads with SIGURG some hundred times a second.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void ready(void) { printf("ready\n"); fflush(stdout); }
static void work(double s) { for (double e = now() + s; now() < e;) for (volatile int i = 0; i < 1000; i++); }
static int tid[4];
static void on(int s) { (void)s; }
static void *run(void *p) { tid[(long)p] = syscall(SYS_gettid); for (;;) { work(0.001); usleep(12000); } return p; }
int main(void) {
	struct sigaction s = {.sa_handler = on, .sa_flags = SA_RESTART};
	sigaction(SIGURG, &s, NULL);
	for (long i = 0; i < 4; i++) { pthread_t t; pthread_create(&t, NULL, run, (void *)i); }
	sleep(1);
	ready();
	for (;;) { for (int i = 0; i < 4; i++) syscall(SYS_tgkill, getpid(), tid[i], SIGURG); usleep(8000); }
}
