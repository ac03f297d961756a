/* A scan of the host: reads a directory in /var/tmp with four threads, past the page cache. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
static char dir[] = "/var/tmp/p18-scan.XXXXXX", name[64]; static int fd; static off_t size;
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void end(int s) { unlink(name); rmdir(dir); _exit(128 + s); }
static void *scan(void *p) {
	void *b; uint64_t s = (long)p + 1; if (posix_memalign(&b, 4096, 65536)) exit(1);
	for (;;) { s = s * 6364136223846793005ull + 1442695040888963407ull; if (pread(fd, b, 65536, (off_t)((s >> 24) % (size / 65536)) * 65536) < 0) exit(1); }
	return p;
}
int main(void) {
	void *b; double e = now() + 9;
	if (!mkdtemp(dir) || posix_memalign(&b, 4096, 1 << 20)) return 1;
	signal(SIGTERM, end); signal(SIGINT, end);
	memset(b, 9, 1 << 20);
	snprintf(name, sizeof name, "%s/files", dir);
	fd = open(name, O_RDWR | O_CREAT | O_DIRECT, 0600); if (fd < 0) fd = open(name, O_RDWR | O_CREAT, 0600); if (fd < 0) return 1;
	for (size = 0; size < 600l << 20 && now() < e; size += 1 << 20) if (pwrite(fd, b, 1 << 20, size) < 0) return 1;
	fsync(fd);
	for (long i = 0; i < 12; i++) { pthread_t t; pthread_create(&t, 0, scan, (void *)i); }
	sleep(2); puts("ready"); fflush(stdout);
	for (;;) pause();
}
