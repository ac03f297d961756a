// set13-victim KIND: an ordinary healthy service that others may disturb. KIND: web (two threads, 6 ms of work every 10 ms),
// disk (a record and fdatasync(2) every 40 ms), read (64 KiB of a file of 160 MiB every 3 ms), files (opens 20 small files
// every 20 ms), heap (240 MiB, and maps and unmaps a little all the time), burst (16 MiB through the page cache every 400 ms).
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static char buf[1 << 20];
static void fail(const char *what) { perror(what); exit(1); }
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void work(double s) { for (double end = now() + s; now() < end;) for (volatile int i = 0; i < 1000; i++); }
static void put(int fd, const void *p, size_t n, off_t at) { if (pwrite(fd, p, n, at) != (ssize_t)n) fail("write"); }
static void *web(void *p) { for (;;) { work(0.006); usleep(4000); } return p; }

int main(int argc, char **argv) {
	const char *kind = argc > 1 ? argv[1] : "web";
	const long size = 160L << 20;
	char name[64];
	int fd = -1;
	if (!strcmp(kind, "disk") || !strcmp(kind, "read") || !strcmp(kind, "burst")) {
		fd = open("/data/table", O_RDWR | O_CREAT, 0600);
		if (fd < 0) fail("open");
	}
	if (!strcmp(kind, "read")) { for (long i = 0; i < size; i += sizeof buf) { memset(buf, (int)(i >> 20), sizeof buf); put(fd, buf, sizeof buf, i); } fsync(fd); }
	if (!strcmp(kind, "files")) for (int i = 0; i < 20; i++) {
		snprintf(name, sizeof name, "/data/page-%d", i);
		int f = open(name, O_WRONLY | O_CREAT, 0600);
		if (f < 0) fail("open");
		put(f, buf, 16384, 0);
		close(f);
	}
	if (!strcmp(kind, "heap")) for (int i = 0; i < 240; i++) { // many mappings, as of a real heap
		char *m = mmap(NULL, 1 << 20, PROT_READ | (i % 2 ? PROT_WRITE : PROT_WRITE | PROT_EXEC), MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (m == MAP_FAILED) fail("mmap");
		memset(m, i, 1 << 20);
	}
	printf("ready\n");
	fflush(stdout);
	if (!strcmp(kind, "web")) { pthread_t t; pthread_create(&t, NULL, web, NULL); web(NULL); }
	for (unsigned long n = 0;; n++) {
		if (!strcmp(kind, "disk")) { put(fd, buf, 4096, 4096 * (n % 2048)); fdatasync(fd); usleep(40000); }
		else if (!strcmp(kind, "read")) { if (pread(fd, buf, 65536, (random() % (size >> 16)) << 16) < 0) fail("read"); usleep(3000); }
		else if (!strcmp(kind, "files")) {
			for (int i = 0; i < 20; i++) {
				snprintf(name, sizeof name, "/data/page-%d", i);
				int f = open(name, O_RDONLY);
				if (f < 0 || read(f, buf, 4096) < 0) fail("read");
				close(f);
			}
			usleep(20000);
		}
		else if (!strcmp(kind, "heap")) {
			char *m = mmap(NULL, 256 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			if (m == MAP_FAILED) fail("mmap");
			for (int i = 0; i < 256 << 10; i += 4096) m[i] = 1;
			munmap(m, 256 << 10);
			usleep(1000);
		}
		else if (!strcmp(kind, "burst")) { for (int i = 0; i < 16; i++) put(fd, buf, sizeof buf, (off_t)(n % 8 * 16 + i) << 20); usleep(400000); }
		else fail(kind);
	}
}
