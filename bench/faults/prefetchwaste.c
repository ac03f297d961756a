// prefetchwaste THREADS FILE_MIB AHEAD_MIB: a database looks up random records of 4 KiB and asks for AHEAD_MIB behind each,
// posix_fadvise(2) WILLNEED: nearly all that is read from the disk is thrown away again. Its file is larger than its memory.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static long size, ahead;
static int fd;
static void *look(void *p) {
	unsigned seed = (unsigned long)p;
	char b[4096];
	for (;;) {
		long at = (long)(rand_r(&seed) % ((size - ahead) / 4096)) * 4096;
		posix_fadvise(fd, at, ahead, POSIX_FADV_WILLNEED);
		if (pread(fd, b, sizeof b, at) < 0) perror("read");
		usleep(500);
	}
	return p;
}
int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 2;
	static char b[1 << 20];
	size = (argc > 2 ? atol(argv[2]) : 400) << 20;
	ahead = (argc > 3 ? atol(argv[3]) : 4) << 20;
	fd = open("/data/collection.0", O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0) { perror("/data"); return 1; }
	for (long i = 0; i < size; i += sizeof b) { memset(b, i >> 20, sizeof b); if (write(fd, b, sizeof b) < 0) { perror("write"); return 1; } }
	fdatasync(fd);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	for (long i = 0; i < n; i++) { pthread_t t; pthread_create(&t, NULL, look, (void *)(i + 1)); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
