// cronjobs JOBS WORK_MS EVERY_S: a scheduler starts JOBS jobs at the same second, each with WORK_MS of CPU time.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double used(void) { struct timespec t; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }

int main(int argc, char **argv) {
	if (argc < 4) return 2;
	int jobs = atoi(argv[1]), ms = atoi(argv[2]), every = atoi(argv[3]);
	for (int round = 0;; round++) {
		for (int i = 0; i < jobs && i < 64; i++) if (fork() == 0) {
			volatile double x = 1;
			while (used() < ms) for (int k = 0; k < 10000; k++) x = x * 1.0000001 + 0.5;
			_exit(0);
		}
		if (round == 0) { printf("ready\n"); fflush(stdout); }
		while (wait(NULL) > 0);
		sleep(every - time(NULL) % every);
	}
}
