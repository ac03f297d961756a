// workers COUNT MS: a pre-forked server with COUNT workers. Every MS milliseconds the oldest of
// them ends and another begins, as servers do that limit the requests of a worker.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t worker(void) { pid_t p = fork(); if (p == 0) for (;;) pause(); return p; }

int main(int argc, char **argv) {
	int count = argc > 1 ? atoi(argv[1]) : 0, ms = argc > 2 ? atoi(argv[2]) : 0;
	if (count < 1 || count > 400 || ms < 10) { fprintf(stderr, "usage: workers COUNT MS\n"); return 2; }
	pid_t *p = calloc(count, sizeof *p);
	for (int i = 0; i < count; i++) p[i] = worker();
	printf("ready\n");
	fflush(stdout);
	for (int i = 0;; i = (i + 1) % count) {
		usleep(ms * 1000);
		if (p[i] > 0) { kill(p[i], SIGTERM); waitpid(p[i], NULL, 0); }
		p[i] = worker();
	}
}
