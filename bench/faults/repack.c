// A git server repacks a repository of 96 MiB every few seconds: delta search in threads, then a new pack, fsync, rename.
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
#define N (96L << 20)
static unsigned char *pack;
static unsigned long sum[2];
static void *delta(void *p) {
	long id = (long)p; unsigned long h = id;
	double end = now() + 1.5;
	while (now() < end) for (long i = id * N / 2; i < (id + 1) * N / 2 && (i & 0xffff || now() < end); i++) h = h * 31 + pack[i];
	sum[id] += h;
	return NULL;
}
int main(void) {
	pack = mmap(NULL, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pack == MAP_FAILED) fail("mmap");
	for (long i = 0; i < N; i += 64) pack[i] = i * 2654435761u >> 7;
	ready();
	for (;;) {
		pthread_t t[2];
		for (long i = 0; i < 2; i++) pthread_create(&t[i], NULL, delta, (void *)i);
		for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
		pack[sum[0] % N] ^= 1;
		int fd = open("/data/tmp_pack", O_WRONLY | O_CREAT | O_TRUNC, 0600);
		if (fd < 0) fail("open");
		for (long i = 0; i < N; i += 1 << 20) if (write(fd, pack + i, 1 << 20) < 0) fail("write");
		fsync(fd); close(fd);
		rename("/data/tmp_pack", "/data/pack-1.pack");
		sleep(3);
	}
}
