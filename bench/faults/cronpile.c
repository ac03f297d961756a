// cronpile: a scheduler starts a report every 0.8 s although the one before is not ready; each needs a minute of CPU time, so
// that they pile up, each slower than the one before, until the container has as many processes as it may.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double cpu(void) { struct timespec t; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void report(void) {
	enum { ROWS = 200000 };
	double *rows = malloc(ROWS * sizeof *rows), sum = 0;
	prctl(PR_SET_NAME, "nightly-report");
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = 0; i < ROWS; i++) rows[i] = i * 0.5;
	while (cpu() < 60) for (int i = 0; i < ROWS; i++) sum += rows[i] / (1 + i % 7);
	_exit(sum < 0);
}
int main(void) {
	printf("ready\n");
	fflush(stdout);
	for (int n = 0;; ) {
		if (n < 59) { pid_t p = fork(); if (p == 0) report(); if (p > 0) n++; }
		while (n > 0 && waitpid(-1, NULL, WNOHANG) > 0) n--;
		usleep(800000);
	}
}
