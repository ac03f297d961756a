// set12-thrash: a search engine that maps an index of 300 MiB but has a memory limit of 96 MiB: each query faults pages in
// from disk which the limit has just evicted.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define SIZE (300ul << 20)
static volatile char *map;
static char buf[1 << 20];
static void *query(void *p) {
	unsigned seed = (unsigned)(long)p;
	for (;;) (void)map[((unsigned long)rand_r(&seed) << 12) % SIZE];
	return NULL;
}
int main(void) {
	int fd = open("/data/index", O_RDWR | O_CREAT, 0600);
	if (fd < 0) { perror("index"); return 1; }
	memset(buf, 9, sizeof buf);
	for (unsigned long i = 0; i < SIZE; i += sizeof buf) { if (pwrite(fd, buf, sizeof buf, i) < 0) return 1; if (i % (16 << 20) == 0) fdatasync(fd); }
	fdatasync(fd);
	map = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED) return 1;
	for (long i = 1; i <= 4; i++) { pthread_t t; pthread_create(&t, NULL, query, (void *)i); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
