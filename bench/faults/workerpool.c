// workerpool: a service with three workers of 40 MiB, each of which it starts again when it dies.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void start(void) {
	if (fork()) return;
	prctl(PR_SET_NAME, "pool-worker11");
	size_t n = 40 << 20;
	char *m = malloc(n);
	if (m) memset(m, 1, n);
	for (;;) { for (volatile int i = 0; i < 300000; i++); usleep(10000); }
}
int main(void) {
	for (int i = 0; i < 3; i++) start();
	printf("ready\n");
	fflush(stdout);
	for (;;) { int s; if (wait(&s) > 0) { fprintf(stderr, "worker died of signal %d\n", WTERMSIG(s)); start(); } }
}
