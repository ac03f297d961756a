/* Makes a snapshot: reads a volume of 512 MiB again and again with eight readers, past the page cache. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
static long blocks;
static void *run(void *a) {
	char *b;
	unsigned long x = (unsigned long)a * 2654435761u + 88172645463325252ul;
	int fd = open("/data/volume", O_RDONLY | O_DIRECT);
	if (fd < 0) fd = open("/data/volume", O_RDONLY);
	if (posix_memalign((void **)&b, 4096, 128 << 10) || fd < 0) return 0;
	for (;;) {
		x ^= x << 13; x ^= x >> 7; x ^= x << 17;
		if (pread(fd, b, 128 << 10, (long)(x % blocks) * (128l << 10)) < 0) usleep(10000);
	}
	return 0;
}
int main(void) {
	static char b[1 << 20];
	struct timespec s, n;
	pthread_t t;
	int fd = open("/data/volume", O_CREAT | O_RDWR | O_TRUNC, 0644);
	if (fd < 0) { perror("volume"); return 1; }
	memset(b, 'v', sizeof b);
	clock_gettime(CLOCK_MONOTONIC, &s);
	for (int i = 0; i < 512; i++) {
		if (write(fd, b, sizeof b) != sizeof b) break;
		blocks += 8;
		clock_gettime(CLOCK_MONOTONIC, &n);
		if (n.tv_sec - s.tv_sec > 7) break;
		if (i % 32 == 31) fdatasync(fd);
	}
	fdatasync(fd);
	for (long i = 1; i <= 8; i++) pthread_create(&t, 0, run, (void *)i);
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
