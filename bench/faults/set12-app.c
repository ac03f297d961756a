// set12-app KIND: a healthy service, which others may disturb. web (two threads that render for 20 ms, then wait 30 ms),
// ledger (a record and fdatasync(2) every 20 ms), pages (four threads open ten files every 20 ms), cached (reads 64 KiB of a
// file of 200 MiB every 2 ms, from the page cache), bursts (64 MiB through the page cache every second), heap (256 MiB, and
// a mapping made, touched and removed every 2 ms).
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
static const char *kind;
static void fail(const char *what) { perror(what); exit(1); }
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void work(double s) { for (double end = now() + s; now() < end;) for (volatile int i = 0; i < 1000; i++); }
static int data(const char *name) { int fd = open(name, O_RDWR | O_CREAT, 0600); if (fd < 0) fail(name); return fd; }

static void *web(void *p) { for (;;) { work(0.02); usleep(30000); } return p; }
static void *pages(void *p) {
	char name[64], b[4096];
	for (;;) {
		for (int i = 0; i < 10; i++) {
			snprintf(name, sizeof name, "/data/page-%d", i);
			int f = open(name, O_RDONLY);
			if (f < 0) continue;
			if (read(f, b, sizeof b) < 0) fail("read");
			close(f);
		}
		usleep(20000);
	}
	return p;
}
int main(int argc, char **argv) {
	kind = argc > 1 ? argv[1] : "web";
	int fd = -1, threads = 0;
	void *(*f)(void *) = NULL;
	memset(buf, 7, sizeof buf);
	if (!strcmp(kind, "web")) f = web, threads = 2;
	else if (!strcmp(kind, "pages")) {
		f = pages; threads = 4;
		for (int i = 0; i < 10; i++) {
			char name[64];
			snprintf(name, sizeof name, "/data/page-%d", i);
			int x = data(name);
			if (pwrite(x, buf, 4096, 0) != 4096) fail("write");
			close(x);
		}
	} else if (!strcmp(kind, "ledger")) fd = data("/data/ledger");
	else if (!strcmp(kind, "bursts")) fd = data("/data/bursts");
	else if (!strcmp(kind, "cached")) {
		fd = data("/data/cached");
		for (int i = 0; i < 200; i++) if (pwrite(fd, buf, sizeof buf, (off_t)i << 20) < 0) fail("write");
		fdatasync(fd);
	}
	char *heap = NULL;
	if (!strcmp(kind, "heap")) { heap = malloc(256 << 20); if (!heap) fail("malloc"); memset(heap, 1, 256 << 20); }
	for (int i = 0; i < threads; i++) { pthread_t t; if (pthread_create(&t, NULL, f, NULL)) fail("thread"); }
	printf("ready\n");
	fflush(stdout);
	if (f) for (;;) pause();
	for (unsigned long n = 0;; n++) {
		if (!strcmp(kind, "ledger")) { if (pwrite(fd, buf, 4096, 4096 * (n % 4096)) < 0) fail("write"); fdatasync(fd); usleep(20000); }
		else if (!strcmp(kind, "cached")) { if (pread(fd, buf, 65536, (off_t)(random() % 3200) << 16) < 0) fail("read"); usleep(2000); }
		else if (!strcmp(kind, "bursts")) { for (int i = 0; i < 64; i++) if (pwrite(fd, buf, sizeof buf, (off_t)(n % 4 * 64 + i) << 20) < 0) fail("write"); usleep(900000); }
		else if (heap) {
			char *m = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			if (m != MAP_FAILED) { memset(m, 1, 1 << 18); munmap(m, 1 << 20); }
			usleep(2000);
		} else return 2;
	}
}
