// A container benchmarks the disk: 16 threads read random blocks of 4 KiB with O_DIRECT.
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
#define N (384L << 20)
static void *reader(void *p) {
	unsigned seed = (unsigned)(long)p + 1; void *b;
	int fd = open("/data/fio.bin", O_RDONLY | O_DIRECT);
	if (fd < 0 || posix_memalign(&b, 4096, 4096)) fail("open");
	for (;;) if (pread(fd, b, 4096, (off_t)(rand_r(&seed) % (N >> 12)) << 12) < 0) fail("read");
	return NULL;
}
int main(void) {
	static char b[1 << 20];
	int fd = open("/data/fio.bin", O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (fd < 0) fail("open");
	for (long i = 0; i < N; i += sizeof b) { memset(b, (int)(i >> 20) | 1, sizeof b); if (write(fd, b, sizeof b) < 0) fail("write"); }
	fsync(fd);
	for (long i = 0; i < 16; i++) { pthread_t t; pthread_create(&t, NULL, reader, (void *)i); }
	ready();
	pause();
	return 0;
}
