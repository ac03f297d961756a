// A Java service starts under a limit of 0.15 CPUs: four compiler threads and two of its own want to run, and the quota stops all.
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
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void ready(void) { printf("ready\n"); fflush(stdout); }
static void work(double s) { for (double e = now() + s; now() < e;) for (volatile int i = 0; i < 1000; i++); }
static void *compile(void *p) { for (;;) { work(0.05); usleep(2000); } return p; }
int main(void) {
	for (int i = 0; i < 6; i++) { pthread_t t; pthread_create(&t, NULL, compile, NULL); }
	ready();
	pause();
	return 0;
}
