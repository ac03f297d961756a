/* A small database: RATE commits a second, each of 8 KB to a log and flushed to the disk. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdint.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>
#include <sys/stat.h>

static int64_t now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000LL + t.tv_nsec / 1000; }

int main(int argc, char **argv) {
	double rate = argc > 1 ? atof(argv[1]) : 20;
	static char page[8192];
	char name[200];
	const char *dir = access("/data", W_OK) ? "/tmp" : "/data";
	snprintf(name, sizeof name, "%s/wal", dir);
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0) { perror(name); return 1; }
	if (strcmp(dir, "/data")) unlink(name);
	memset(page, 'w', sizeof page);
	long n = 0, slow = 0; int64_t worst = 0, report = now() + 10000000;
	puts("ready"); fflush(stdout);
	for (long k = 0;; k++) {
		int64_t t = now();
		if (pwrite(fd, page, sizeof page, (k % 2048) * 8192L) < 0 || fdatasync(fd)) { perror("commit"); return 1; }
		int64_t took = now() - t;
		n++; if (took > 20000) slow++; if (took > worst) worst = took;
		if (now() > report) {
			printf("%ld commits, %ld slow, worst %lld ms\n", n, slow, (long long)worst / 1000); fflush(stdout);
			n = slow = worst = 0; report = now() + 10000000;
		}
		long rest = (long)(1e6 / rate) - took;
		if (rest > 0) usleep(rest);
	}
}
