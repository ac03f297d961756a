/* An archive job: reads a store of MB megabytes past the cache with THREADS readers, again and again. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long mb = 1200, threads = 8;
static char name[200];
static int store;
static volatile uint64_t sum;

static void *reader(void *a) {
	char *buf = aligned_alloc(4096, 1 << 20);
	for (long k = (long)a;; k += threads) {
		if (pread(store, buf, 1 << 20, (k % mb) << 20) < 0) { perror("read"); exit(1); }
		for (int i = 0; i < 1 << 20; i += 4096) sum += buf[i];
	}
	return 0;
}

int main(int argc, char **argv) {
	if (argc > 1) threads = atol(argv[1]);
	if (argc > 2) mb = atol(argv[2]);
	static char buf[1 << 20];
	snprintf(name, sizeof name, "%s/store-%d", access("/data", W_OK) ? "/var/tmp" : "/data", getpid());
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0) { perror(name); return 1; }
	memset(buf, 's', sizeof buf);
	for (long i = 0; i < mb; i++) if (write(fd, buf, sizeof buf) < 0) { perror("write"); return 1; }
	fdatasync(fd);
	store = open(name, O_RDONLY | O_DIRECT);
	unlink(name);
	if (store < 0) { perror("direct"); return 1; }
	pthread_t t;
	for (long i = 0; i < threads; i++) pthread_create(&t, 0, reader, (void *)i);
	sleep(1);
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
