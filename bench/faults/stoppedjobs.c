// A job in the background reads its terminal while it holds the lock of the queue: SIGTTIN stops it, and five workers wait for the lock for ever.
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
#include <sys/ioctl.h>
static void fail(const char *what) { perror(what); exit(1); }
static void ready(void) { printf("ready\n"); fflush(stdout); }
int main(void) {
	if (getpid() == 1 && fork()) { pause(); return 0; } // the first process of a container leads a session already
	setsid();
	signal(SIGHUP, SIG_IGN); signal(SIGTTOU, SIG_IGN);
	int m = posix_openpt(O_RDWR | O_NOCTTY);
	if (m < 0 || grantpt(m) || unlockpt(m)) fail("pty");
	int s = open(ptsname(m), O_RDWR | O_NOCTTY), st;
	if (s < 0 || ioctl(s, TIOCSCTTY, 0)) fail("tty");
	if (tcsetpgrp(s, getpgrp())) fail("tcsetpgrp");
	pid_t first = 0;
	for (int i = 0; i < 6; i++) {
		pid_t p = fork();
		if (p == 0) {
			setpgid(0, 0);
			char c;
			int l = open("/tmp/queue.lock", O_RDWR | O_CREAT, 0600);
			if (l < 0) fail("lock");
			flock(l, LOCK_EX);
			if (i == 0 && read(s, &c, 1) < 0) fail("read"); // "Continue? [y/n]"
			for (;;) pause();
		}
		if (i == 0) { first = p; if (waitpid(first, &st, WUNTRACED) < 0 || !WIFSTOPPED(st)) fail("not stopped"); }
	}
	ready();
	for (;;) pause();
}
