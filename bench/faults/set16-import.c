/* A bulk import: THREADS threads write chunks of a table of MB megabytes each and flush them, again and again. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long mb = 350;

static void *load(void *a) {
	char name[200], *buf = aligned_alloc(4096, 1 << 20);
	memset(buf, 'i', 1 << 20);
	snprintf(name, sizeof name, "%s/table-%d-%ld", access("/data", W_OK) ? "/var/tmp" : "/data", getpid(), (long)a);
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0) { perror(name); exit(1); }
	unlink(name);
	for (long k = 0;; k++) {
		if (pwrite(fd, buf, 1 << 20, (k % mb) << 20) < 0) { perror("write"); exit(1); }
		if (k % 16 == 15) fdatasync(fd);
	}
	return 0;
}

int main(int argc, char **argv) {
	long threads = argc > 1 ? atol(argv[1]) : 5;
	if (argc > 2) mb = atol(argv[2]);
	pthread_t t;
	for (long i = 0; i < threads; i++) pthread_create(&t, 0, load, (void *)i);
	sleep(3);
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
