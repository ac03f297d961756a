/* A lookup service: a file of MB megabytes, kept in the page cache, of which it reads RATE random pages a second. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdint.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

static int64_t now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000LL + t.tv_nsec / 1000; }

int main(int argc, char **argv) {
	long mb = argc > 1 ? atol(argv[1]) : 200, rate = argc > 2 ? atol(argv[2]) : 1000;
	static char buf[1 << 20];
	char name[200];
	const char *dir = access("/data", W_OK) ? "/var/tmp" : "/data";
	snprintf(name, sizeof name, "%s/table-%d", dir, getpid());
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0) { perror(name); return 1; }
	unlink(name);
	memset(buf, 't', sizeof buf);
	for (long i = 0; i < mb; i++) if (write(fd, buf, sizeof buf) < 0) { perror("write"); return 1; }
	fdatasync(fd);
	uint64_t x = 88172645463325252ULL;
	long n = 0, slow = 0; int64_t report = now() + 10000000;
	puts("ready"); fflush(stdout);
	for (;;) {
		int64_t t = now();
		for (int i = 0; i < 10; i++) {
			x ^= x << 13; x ^= x >> 7; x ^= x << 17;
			int64_t b = now();
			if (pread(fd, buf, 4096, (long)(x % (mb * 256)) * 4096) < 0) { perror("read"); return 1; }
			n++; if (now() - b > 100) slow++;
		}
		if (now() > report) { printf("%ld lookups, %ld from the disk\n", n, slow); fflush(stdout); n = slow = 0; report = now() + 10000000; }
		long rest = 10000000 / rate - (now() - t);
		if (rest > 0) usleep(rest);
	}
}
