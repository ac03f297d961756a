// patient KIND: an ordinary service that others may disturb: cpu, disk (fsync), open (small files), seq (reads a file in sequence).
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
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void fail(const char *what) { perror(what); exit(1); }
static void ready(void) { printf("ready\n"); fflush(stdout); }
static void work(double s) { for (double e = now() + s; now() < e;) for (volatile int i = 0; i < 1000; i++); }
int main(int argc, char **argv) {
	const char *k = argc > 1 ? argv[1] : "cpu";
	static char b[1 << 16];
	int fd = -1;
	if (!strcmp(k, "disk") || !strcmp(k, "seq")) { fd = open("/data/patient", O_RDWR | O_CREAT, 0600); if (fd < 0) fail("open"); }
	if (!strcmp(k, "seq")) { for (int i = 0; i < 3200; i++) { memset(b, i, sizeof b); if (write(fd, b, sizeof b) < 0) fail("write"); } fsync(fd); }
	if (!strcmp(k, "open")) for (int i = 0; i < 20; i++) { char n[64]; snprintf(n, sizeof n, "/data/doc-%d", i); int f = open(n, O_WRONLY | O_CREAT, 0600); if (f < 0 || write(f, b, 4096) < 0) fail("write"); close(f); }
	ready();
	for (unsigned long n = 0;; n++) {
		if (!strcmp(k, "disk")) { if (pwrite(fd, b, 4096, 4096 * (n % 1024)) < 0) fail("write"); fdatasync(fd); usleep(40000); }
		else if (!strcmp(k, "open")) { char p[64]; for (int i = 0; i < 20; i++) { snprintf(p, sizeof p, "/data/doc-%d", i); int f = open(p, O_RDONLY); if (f >= 0) { if (read(f, b, 4096) < 0) fail("read"); close(f); } } work(0.001); usleep(15000); }
		else if (!strcmp(k, "seq")) { int f = open("/data/patient", O_RDONLY); if (f < 0) fail("open"); while (read(f, b, sizeof b) > 0) usleep(200); close(f); }
		else { work(0.002); usleep(8000); }
	}
}
