// crashtests RATE: a test suite starts RATE death tests a second: children that must die of SIGSEGV, and leave no core (PR_SET_DUMPABLE).
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
	int rate = argc > 1 ? atoi(argv[1]) : 4;
	printf("ready\n");
	fflush(stdout);
	for (;; usleep(1000000 / rate)) {
		pid_t p = fork();
		if (p == 0) { prctl(PR_SET_DUMPABLE, 0); raise(SIGSEGV); _exit(1); }
		if (p > 0) waitpid(p, NULL, 0);
	}
}
