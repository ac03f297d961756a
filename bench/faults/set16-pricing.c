/* A pricing service: ANON MB of objects, and a mapped table of FILE MB whose pages it reads at random. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile char *table;
static size_t pages;

static void *query(void *a) {
	uint64_t x = 88172645463325252ULL + (uintptr_t)a * 977;
	volatile unsigned sum = 0;
	for (;;) {
		x ^= x << 13; x ^= x >> 7; x ^= x << 17;
		sum += table[(x % pages) * 4096];
	}
	return 0;
}

int main(int argc, char **argv) {
	long anon = argc > 1 ? atol(argv[1]) : 60, file = argc > 2 ? atol(argv[2]) : 120, threads = argc > 3 ? atol(argv[3]) : 3;
	static char buf[1 << 20];
	char name[200];
	snprintf(name, sizeof name, "%s/prices-%d", access("/data", W_OK) ? "/var/tmp" : "/data", getpid());
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0) { perror(name); return 1; }
	unlink(name);
	for (long i = 0; i < file; i++) if (write(fd, buf, sizeof buf) < 0) { perror("write"); return 1; }
	fdatasync(fd);
	volatile char *p = malloc(anon << 20);
	for (long i = 0; i < anon << 20; i += 4096) p[i] = i;
	table = mmap(0, file << 20, PROT_READ, MAP_SHARED, fd, 0);
	if (table == MAP_FAILED) { perror("mmap"); return 1; }
	pages = (size_t)file * 256;
	pthread_t t;
	for (long i = 0; i < threads; i++) pthread_create(&t, 0, query, (void *)i);
	sleep(1);
	puts("ready"); fflush(stdout);
	for (;;) { for (long i = 0; i < anon << 20; i += 4096) p[i]++; usleep(200000); }
}
