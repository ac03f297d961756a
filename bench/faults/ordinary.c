// ordinary KIND [LABEL]: an ordinary service under light load that others may slow down. KIND: web (2 ms of work every
// 10 ms), db (a record and fdatasync(2) every 40 ms), pages (opens and reads eight files every 10 ms), busy (6 ms of
// work every 10 ms), first (as web, bound to the first CPU that it may use).
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char buf[16384];
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static double used(void) { struct timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void work(double s) { for (double end = used() + s; used() < end;) for (volatile int i = 0; i < 2000; i++); }
static void fail(const char *what) { perror(what); exit(1); }

int main(int argc, char **argv) {
	const char *kind = argc > 1 ? argv[1] : "web";
	char name[64];
	int fd = -1;
	if (!strcmp(kind, "db") && (fd = open("/data/ledger", O_RDWR | O_CREAT, 0600)) < 0) fail("/data/ledger");
	if (!strcmp(kind, "pages")) for (int i = 0; i < 8; i++) {
		snprintf(name, sizeof name, "/data/article-%d", i);
		int f = open(name, O_WRONLY | O_CREAT, 0600);
		if (f < 0 || write(f, buf, sizeof buf) < 0) fail(name);
		close(f);
	}
	if (!strcmp(kind, "first")) {
		cpu_set_t may, one;
		if (sched_getaffinity(0, sizeof may, &may)) fail("sched_getaffinity");
		CPU_ZERO(&one);
		for (int c = 0; c < CPU_SETSIZE; c++) if (CPU_ISSET(c, &may)) { CPU_SET(c, &one); break; }
		if (sched_setaffinity(0, sizeof one, &one)) fail("sched_setaffinity");
	}
	printf("ready\n");
	fflush(stdout);
	double worst = 0;
	for (unsigned long n = 0;; n++) {
		double t = now();
		if (!strcmp(kind, "db")) {
			if (pwrite(fd, buf, 8192, 8192 * (off_t)(n % 1024)) < 0) fail("pwrite");
			fdatasync(fd);
			usleep(40000);
		} else if (!strcmp(kind, "pages")) {
			for (int i = 0; i < 8; i++) {
				snprintf(name, sizeof name, "/data/article-%d", i);
				int f = open(name, O_RDONLY);
				if (f < 0 || read(f, buf, sizeof buf) < 0) fail(name);
				close(f);
			}
			usleep(10000);
		} else if (!strcmp(kind, "busy")) { work(0.006); usleep(4000); }
		else { work(0.002); usleep(8000); }
		if (now() - t > worst) worst = now() - t;
	}
}
