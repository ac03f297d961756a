// hole-scan MIB THREADS: a backup of images which looks for the holes of a sparse file of MIB with lseek(2), SEEK_DATA and
// SEEK_HOLE, and begins anew when it is at the end: each second block of the file is a hole.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *scan(void *x) {
	int fd = open("/data/image", O_RDONLY);
	if (fd < 0) { perror("open"); exit(1); }
	for (;;) for (off_t at = 0; (at = lseek(fd, at, SEEK_DATA)) >= 0;) if ((at = lseek(fd, at, SEEK_HOLE)) < 0) break;
	return x;
}
int main(int argc, char **argv) {
	long mib = argc > 1 ? atol(argv[1]) : 64;
	static char b[4096];
	int fd = open("/data/image", O_RDWR | O_CREAT, 0600);
	if (fd < 0 || mib < 1 || mib > 256) { perror("open"); return 1; }
	for (long i = 0; i < mib << 20; i += 8192) if (pwrite(fd, b, sizeof b, i) < 0) { perror("write"); return 1; }
	fsync(fd);
	for (int i = 0; i < (argc > 2 ? atoi(argv[2]) : 3); i++) { pthread_t t; pthread_create(&t, NULL, scan, NULL); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
