// A backup reads all data of its container past the page cache with four threads and no limit of its rate.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIZE (768L << 20)
static int fd;
static void *reader(void *p) {
	void *b;
	if (posix_memalign(&b, 4096, 1 << 20)) exit(1);
	for (long n = (long)p * 190;; n++) if (pread(fd, b, 1 << 20, (n % (SIZE >> 20)) << 20) < 0) { perror("read"); exit(1); }
	return NULL;
}
int main(void) {
	void *b;
	pthread_t t;
	fd = open("/data/archive", O_RDWR | O_CREAT | O_DIRECT, 0600);
	if (fd < 0 || posix_memalign(&b, 4096, 1 << 20)) { perror("open"); return 1; }
	memset(b, 9, 1 << 20);
	for (long i = 0; i < SIZE; i += 1 << 20) if (pwrite(fd, b, 1 << 20, i) < 0) { perror("write"); return 1; }
	for (long i = 1; i < 4; i++) if (pthread_create(&t, NULL, reader, (void *)i)) return 1;
	if (write(1, "ready\n", 6) < 0) return 1;
	reader(NULL);
	return 0;
}
