// inversion: a janitor at nice 19 holds the lock of a cache for 20 ms of work each time, while four batch threads of the same
// service calculate at the ordinary priority; the janitor hardly ever runs, and all request threads wait for its lock.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static double cpu(void) { struct timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void work(double s) { for (double end = cpu() + s; cpu() < end;) for (volatile int i = 0; i < 2000; i++); }
static void *janitor(void *p) {
	prctl(PR_SET_NAME, "janitor");
	setpriority(PRIO_PROCESS, syscall(SYS_gettid), 19);
	for (;;) { pthread_mutex_lock(&lock); work(0.02); pthread_mutex_unlock(&lock); usleep(30000); }
	return p;
}
static void *batch(void *p) { prctl(PR_SET_NAME, "batch"); for (;;) for (volatile int i = 0; i < 100000; i++); return p; }
static void *request(void *p) {
	prctl(PR_SET_NAME, "request");
	for (;;) { pthread_mutex_lock(&lock); for (volatile int i = 0; i < 5000; i++); pthread_mutex_unlock(&lock); usleep(10000); }
	return p;
}
int main(void) {
	pthread_t t;
	pthread_create(&t, NULL, janitor, NULL);
	for (int i = 0; i < 4; i++) pthread_create(&t, NULL, batch, NULL);
	for (int i = 0; i < 20; i++) pthread_create(&t, NULL, request, NULL);
	printf("ready\n");
	fflush(stdout);
	pause();
	return 0;
}
