// A service searches an index of 320 MiB that is mapped, in a container that may keep 96 MiB: pages are evicted
// and read again all the time (memory control group, Documentation/admin-guide/cgroup-v1/memory.rst).
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIZE (320L << 20)
static char *map;
static void *search(void *p) {
	unsigned long x = (unsigned long)p * 7919 + 1, sum = 0;
	for (;;) {
		x = x * 6364136223846793005UL + 1442695040888963407UL;
		sum += (unsigned char)map[(x >> 20) % SIZE];
		if (sum == 1) usleep(1);
	}
	return NULL;
}
int main(void) {
	static char b[1 << 20];
	pthread_t t;
	int fd = open("/data/index", O_RDWR | O_CREAT, 0600);
	if (fd < 0) { perror("open"); return 1; }
	memset(b, 3, sizeof b);
	for (long i = 0; i < SIZE; i += sizeof b) {
		if (write(fd, b, sizeof b) < 0) { perror("write"); return 1; }
		if (i % (16L << 20) == 0) fdatasync(fd);
	}
	fsync(fd);
	map = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED) { perror("mmap"); return 1; }
	for (long i = 1; i < 4; i++) if (pthread_create(&t, NULL, search, (void *)i)) return 1;
	if (write(1, "ready\n", 6) < 0) return 1;
	search(NULL);
	return 0;
}
