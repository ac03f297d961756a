// The monthly check of a RAID array: all of the data is read with O_DIRECT, in large blocks, by four readers. Reads a file of 256 MiB of its own.
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
static void fail(const char *what) { perror(what); exit(1); }
static void ready(void) { printf("ready\n"); fflush(stdout); }
#define N (256L << 20)
static const char *name = "/var/tmp/set8-scrub.img";
static void *check(void *p) {
	void *b; unsigned long sum = 0; long at = (long)p * N / 4;
	int fd = open(name, O_RDONLY | O_DIRECT);
	if (fd < 0 || posix_memalign(&b, 4096, 1 << 20)) fail("open");
	for (;; at = (at + (1 << 20)) % N) { ssize_t r = pread(fd, b, 1 << 20, at); if (r < 0) fail("read"); for (int i = 0; i < r / 8; i += 8) sum ^= ((unsigned long *)b)[i]; }
	return (void *)sum;
}
int main(void) {
	static char b[1 << 20];
	int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (fd < 0) fail("open");
	for (long i = 0; i < N; i += sizeof b) { memset(b, (int)(i >> 20) | 1, sizeof b); if (write(fd, b, sizeof b) < 0) fail("write"); }
	fsync(fd); close(fd);
	for (long i = 0; i < 4; i++) { pthread_t t; pthread_create(&t, NULL, check, (void *)i); }
	ready();
	pause();
	return 0;
}
