// bystander KIND: a healthy service which others may disturb. KIND: requests (2 ms of work every 10 ms), commits (a record
// and fdatasync(2) every 50 ms), watches (an inotify watch on a file every 200 ms), clock (reads the time, works a little).
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void work(double s) { for (double end = now() + s; now() < end;) for (volatile int i = 0; i < 1000; i++); }
int main(int argc, char **argv) {
	const char *kind = argc > 1 ? argv[1] : "requests";
	static char buf[4096];
	int fd = -1;
	if (!strcmp(kind, "commits")) {
		fd = open("/data/ledger", O_RDWR | O_CREAT, 0600);
		if (fd < 0) { perror("/data/ledger"); return 1; }
	}
	printf("ready\n");
	fflush(stdout);
	for (unsigned long n = 0;; n++) {
		if (fd >= 0) {
			if (pwrite(fd, buf, sizeof buf, 4096 * (n % 1024)) < 0) perror("write");
			fdatasync(fd);
			usleep(50000);
		} else if (!strcmp(kind, "watches")) {
			int i = inotify_init1(IN_CLOEXEC), w = i < 0 ? -1 : inotify_add_watch(i, "/tmp", IN_CREATE);
			if (w < 0 && n % 50 == 0) perror("watch");
			if (i >= 0) close(i);
			usleep(200000);
		} else { work(0.002); usleep(8000); }
	}
}
