// shortjobs AT_ONCE MS: keeps AT_ONCE processes busy, each of which calculates for MS
// milliseconds of CPU time and ends, and another begins: a list of processes never shows one
// that has used much.
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double used(void) { struct timespec t; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }
static void job(double ms) { while (used() < ms) for (volatile int i = 0; i < 20000; i++); _exit(0); }

int main(int argc, char **argv) {
	int most = argc > 1 ? atoi(argv[1]) : 0;
	double ms = argc > 2 ? atof(argv[2]) : 0;
	if (most < 1 || most > 64 || ms < 5) { fprintf(stderr, "usage: shortjobs AT_ONCE MS\n"); return 2; }
	printf("ready\n");
	fflush(stdout);
	for (int running = 0;; running++) {
		for (; running >= most; running--) wait(NULL);
		if (fork() == 0) job(ms);
	}
}
