// A job runner is at its limit of processes (pids.max) and tries fork(2) again without a pause.
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
static void ready(void) { printf("ready\n"); fflush(stdout); }
int main(void) {
	int said = 0;
	for (;;) {
		pid_t p = fork();
		if (p == 0) for (;;) pause();
		if (p < 0) { if (!said) { said = 1; ready(); } usleep(200); }
	}
}
