// A signal stops a job while it holds the lock of the queue, and five workers wait for the lock for ever.
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
#include <sys/file.h>
static void fail(const char *what) { perror(what); exit(1); }
static void ready(void) { printf("ready\n"); fflush(stdout); }
int main(void) {
	int st;
	for (int i = 0; i < 6; i++) {
		pid_t p = fork();
		if (p == 0) {
			int l = open("/tmp/queue.lock", O_RDWR | O_CREAT, 0600);
			if (l < 0) fail("lock");
			flock(l, LOCK_EX);
			if (i == 0) raise(SIGSTOP);
			for (;;) pause();
		}
		if (i == 0 && (waitpid(p, &st, WUNTRACED) < 0 || !WIFSTOPPED(st))) fail("not stopped");
	}
	ready();
	for (;;) pause();
}
