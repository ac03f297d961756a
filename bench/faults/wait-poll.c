// wait-poll CHILDREN THREADS: a supervisor of CHILDREN workers which asks in a loop whether one of them has ended,
// waitpid(2) with WNOHANG, in THREADS threads. Each call walks the list of all children under the lock of all tasks.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void *poll_children(void *x) { int s; for (;;) waitpid(-1, &s, WNOHANG); return x; }
int main(int argc, char **argv) {
	if (argc < 3) return 2;
	for (int i = 0; i < atoi(argv[1]); i++) {
		pid_t p = fork();
		if (p < 0) { perror("fork"); break; }
		if (p == 0) { prctl(PR_SET_PDEATHSIG, SIGKILL); for (;;) pause(); }
	}
	for (int i = 0; i < atoi(argv[2]); i++) { pthread_t t; pthread_create(&t, NULL, poll_children, NULL); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
