// A store updates random pages of a shared file mapping of 300 MiB and never syncs: the kernel writes them back without end.
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
#define N (300L << 20)
static char *m;
static void *update(void *p) {
	unsigned seed = (unsigned)(long)p + 1;
	for (;;) { for (int i = 0; i < 200; i++) m[((long)rand_r(&seed) % (N >> 12)) << 12]++; usleep(10000); }
	return NULL;
}
int main(void) {
	static char b[1 << 20];
	int fd = open("/data/store.mdb", O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0) fail("open");
	for (long i = 0; i < N; i += sizeof b) if (write(fd, b, sizeof b) < 0) fail("write");
	m = mmap(NULL, N, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (m == MAP_FAILED) fail("mmap");
	for (long i = 0; i < 4; i++) { pthread_t t; pthread_create(&t, NULL, update, (void *)i); }
	ready();
	pause();
	return 0;
}
