// checkpoint MIB SECONDS: a database with a big heap file of 2 * MIB. Each SECONDS a checkpoint writes MIB of scattered
// pages of 8 KiB into the page cache, and flushes them all at once with fdatasync(2).
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
int main(int argc, char **argv) {
	long mib = argc > 1 ? atol(argv[1]) : 128, pages = mib * 128;
	double pause = argc > 2 ? atof(argv[2]) : 6;
	char page[8192];
	int fd = open("/data/heap", O_RDWR | O_CREAT, 0600);
	if (fd < 0 || mib < 1 || mib > 256 || ftruncate(fd, 2 * pages * 8192)) { perror("open"); return 1; }
	for (unsigned long n = 0;; n++) {
		double begin = now();
		memset(page, (int)n, sizeof page);
		for (long i = 0; i < pages; i++) if (pwrite(fd, page, sizeof page, (random() % (2 * pages)) * 8192) < 0) { perror("write"); return 1; }
		if (n == 0) { printf("ready\n"); fflush(stdout); }
		fdatasync(fd);
		while (now() < begin + pause) usleep(50000);
	}
}
