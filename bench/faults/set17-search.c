/* A search engine: its index of 320 MiB is a mapped file, and four threads look words up all over it. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
static volatile char *index_;
static size_t size;
static void *look(void *a) {
	unsigned long x = (unsigned long)a * 2654435761u + 88172645463325252ul;
	volatile long s = 0;
	for (;;) {
		x ^= x << 13; x ^= x >> 7; x ^= x << 17;
		s += index_[x % size];
	}
	return 0;
}
int main(void) {
	static char b[1 << 20];
	pthread_t t;
	struct timespec a, n;
	int fd = open("/data/index", O_CREAT | O_RDWR | O_TRUNC, 0644);
	if (fd < 0) { perror("index"); return 1; }
	memset(b, 'i', sizeof b);
	clock_gettime(CLOCK_MONOTONIC, &a);
	for (int i = 0; i < 320; i++) {
		if (write(fd, b, sizeof b) != sizeof b) break;
		size += sizeof b;
		clock_gettime(CLOCK_MONOTONIC, &n);
		if (n.tv_sec - a.tv_sec > 9 && size > (200u << 20)) break;
	}
	fdatasync(fd);
	index_ = mmap(0, size, PROT_READ, MAP_SHARED, fd, 0);
	if (index_ == MAP_FAILED) { perror("mmap"); return 1; }
	for (long i = 1; i <= 4; i++) pthread_create(&t, 0, look, (void *)i);
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
