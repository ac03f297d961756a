// clockreads: a database times each row of each plan node. Where the clock source cannot be read in user space, vdso(7),
// each reading is a system call, and four queries make millions of them.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void *query(void *p) {
	volatile double sum = 0;
	prctl(PR_SET_NAME, "explain-analyze");
	for (unsigned long row = 0;; row++) {
		struct timespec a, b;
		syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &a);
		for (int i = 0; i < 30; i++) sum += row * i;
		syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &b);
	}
	return p;
}
int main(void) {
	for (int i = 0; i < 4; i++) { pthread_t t; pthread_create(&t, NULL, query, NULL); }
	printf("ready\n");
	fflush(stdout);
	pause();
	return 0;
}
