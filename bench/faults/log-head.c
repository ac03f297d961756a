// log-head MIB THREADS: a message broker which appends a megabyte to a log of MIB, flushes it, and cuts the oldest megabyte
// off with fallocate(2), FALLOC_FL_COLLAPSE_RANGE (where the file system has not got that, it punches a hole).
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long mib;
static void *topic(void *x) {
	const long m = 1 << 20;
	char name[64], *b = malloc(m);
	snprintf(name, sizeof name, "/data/topic-%ld.log", (long)x);
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0) { perror("open"); exit(1); }
	memset(b, 5, m);
	for (long i = 0; i < mib - 1; i++) if (pwrite(fd, b, m, i * m) < 0) { perror("write"); exit(1); }
	for (long n = 0, hole = 0;; n++) {
		if (pwrite(fd, b, m, hole ? n % mib * m : (mib - 1) * m) < 0) { perror("write"); exit(1); }
		fdatasync(fd);
		if (!hole && fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, m)) {
			if (errno != EOPNOTSUPP && errno != EINVAL) { perror("fallocate"); exit(1); }
			hole = 1;
		}
		if (hole) fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (n + 1) % mib * m, m);
	}
	return NULL;
}
int main(int argc, char **argv) {
	mib = argc > 1 ? atol(argv[1]) : 64;
	if (mib < 2 || mib > 256) return 2;
	for (long i = 0; i < (argc > 2 ? atoi(argv[2]) : 2); i++) { pthread_t t; pthread_create(&t, NULL, topic, (void *)i); }
	usleep(500000);
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
