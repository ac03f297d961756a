// 48 request workers share a cached page; every 4 s it expires and all of them compute it again at once (dogpile).
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
static void fail(const char *what) { perror(what); exit(1); }
static void ready(void) { printf("ready\n"); fflush(stdout); }
static void work(double s) { for (double e = now() + s; now() < e;) for (volatile int i = 0; i < 1000; i++); }
static volatile double expires;
static void *worker(void *p) {
	for (;;) {
		if (now() > expires) { volatile double s = 0; for (int i = 0; i < 8000000; i++) s += i; expires = now() + 4; }
		else { work(0.0001); usleep(20000); }
	}
	return p;
}
int main(void) {
	expires = now() + 1;
	for (int i = 0; i < 48; i++) { pthread_t t; if (pthread_create(&t, NULL, worker, NULL)) fail("thread"); }
	ready();
	pause();
	return 0;
}
