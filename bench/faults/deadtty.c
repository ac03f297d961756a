// Three editors whose terminal has gone: each polls and reads the dead terminal again and again.
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
#include <poll.h>
static void fail(const char *what) { perror(what); exit(1); }
static void ready(void) { printf("ready\n"); fflush(stdout); }
int main(void) {
	signal(SIGHUP, SIG_IGN);
	for (int i = 0; i < 3; i++) {
		int m = posix_openpt(O_RDWR | O_NOCTTY);
		if (m < 0 || grantpt(m) || unlockpt(m)) fail("pty");
		int s = open(ptsname(m), O_RDWR | O_NOCTTY);
		if (s < 0) fail("pts");
		close(m);
		if (fork() == 0) for (;;) { struct pollfd f = {s, POLLIN, 0}; char c; poll(&f, 1, 1000); if (read(s, &c, 1) < 0 && errno == EBADF) fail("read"); }
		close(s);
	}
	ready();
	for (;;) pause();
}
