// lucene MIB THREADS: a search engine maps an index of MIB MiB, more than its container may cache, and reads random
// pages of it.
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static unsigned long size;
static volatile char *map;
static void *query(void *p) {
	unsigned seed = (unsigned)(long)p, sum = 0;
	for (;;) sum += map[(unsigned long)(rand_r(&seed) % (size >> 12)) << 12];
	return (void *)(long)sum;
}
int main(int argc, char **argv) {
	if (argc < 3) return 2;
	static char b[1 << 20];
	pthread_t t;
	size = atol(argv[1]) << 20;
	if (size > 400UL << 20) size = 400UL << 20;
	int fd = open("/data/segments.cfs", O_RDWR | O_CREAT, 0600);
	if (fd < 0) { perror("/data/segments.cfs"); return 1; }
	for (unsigned long i = 0; i < size; i += sizeof b) { memset(b, (int)(i >> 20) | 1, sizeof b); if (write(fd, b, sizeof b) < 0) { perror("write"); return 1; } }
	fdatasync(fd);
	map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED) { perror("mmap"); return 1; }
	madvise((void *)map, size, MADV_RANDOM);
	for (long i = 0; i < atol(argv[2]) && i < 16; i++) pthread_create(&t, NULL, query, (void *)(i + 1));
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
