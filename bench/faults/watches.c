// A development server watches 600 directories, far from the limit, and reads each event at once.
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
#include <sys/inotify.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void fail(const char *what) { perror(what); exit(1); }
static void ready(void) { printf("ready\n"); fflush(stdout); }
static void work(double s) { for (double e = now() + s; now() < e;) for (volatile int i = 0; i < 1000; i++); }
int main(void) {
	char n[128], b[4096];
	int in = inotify_init1(IN_NONBLOCK);
	if (in < 0) fail("inotify_init");
	mkdir("/tmp/src", 0700);
	for (int i = 0; i < 600; i++) { snprintf(n, sizeof n, "/tmp/src/dir-%d", i); mkdir(n, 0700); if (inotify_add_watch(in, n, IN_CREATE | IN_MODIFY | IN_DELETE) < 0) fail("watch"); }
	ready();
	for (unsigned k = 0;; k++) {
		snprintf(n, sizeof n, "/tmp/src/dir-%u/file", k % 600);
		int f = open(n, O_WRONLY | O_CREAT, 0600);
		if (f >= 0) { if (write(f, "x", 1) < 0) fail("write"); close(f); }
		unlink(n);
		while (read(in, b, sizeof b) > 0);
		work(0.0005); usleep(10000);
	}
}
