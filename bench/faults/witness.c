// witness KIND [MIB]: a healthy service that others may disturb: cpu (2 ms of work every 10 ms), commit (a record and
// fdatasync(2) every 40 ms), read (64 KiB at random of a file of MIB MiB, every 4 ms), spawn (a process every 50 ms).
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char buf[1 << 20];
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void work(double s) { for (double end = now() + s; now() < end;) for (volatile int i = 0; i < 1000; i++); }
static void fail(const char *w) { perror(w); exit(1); }

int main(int argc, char **argv) {
	const char *kind = argc > 1 ? argv[1] : "cpu";
	long mib = argc > 2 ? atol(argv[2]) : 300;
	int fd = -1;
	prctl(PR_SET_NAME, "order-store");
	if (strcmp(kind, "commit") == 0 || strcmp(kind, "read") == 0) {
		fd = open("/data/orders", O_RDWR | O_CREAT, 0600);
		if (fd < 0) fail("open");
	}
	if (strcmp(kind, "read") == 0) {
		for (long i = 0; i < mib; i++) { memset(buf, (int)i, sizeof buf); if (pwrite(fd, buf, sizeof buf, i << 20) < 0) fail("write"); }
		fsync(fd);
	}
	printf("ready\n");
	fflush(stdout);
	for (unsigned long n = 0;; n++) {
		if (strcmp(kind, "cpu") == 0) { work(0.002); usleep(8000); }
		else if (strcmp(kind, "commit") == 0) { if (pwrite(fd, buf, 4096, 4096 * (n % 2048)) < 0) fail("write"); fdatasync(fd); usleep(40000); }
		else if (strcmp(kind, "read") == 0) { if (pread(fd, buf, 65536, (random() % (mib << 4)) << 16) < 0) fail("read"); usleep(4000); }
		else if (strcmp(kind, "spawn") == 0) { pid_t p = fork(); if (p == 0) _exit(0); if (p > 0) waitpid(p, NULL, 0); usleep(50000); }
		else { fprintf(stderr, "witness: unknown kind\n"); return 2; }
	}
}
