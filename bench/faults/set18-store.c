/* Stores on the disk: commit N | archive | restore MB | lookup N | journal MB_PER_S MAX_MB. The directory is the environment's P18_DIR or /data. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
static const char *dir = "/data";
static char name[300]; static int fd; static off_t size; static int direct = O_DIRECT;
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void end(int s) { if (name[0]) unlink(name); _exit(128 + s); }
static void *block(size_t n) { void *p; if (posix_memalign(&p, 4096, n)) exit(1); uint64_t *w = p, a = 88172645463325252ull; for (size_t i = 0; i < n / 8; i++) { a ^= a << 13; a ^= a >> 7; a ^= a << 17; w[i] = a; } return p; }
static uint64_t rnd(uint64_t *s) { *s = *s * 6364136223846793005ull + 1442695040888963407ull; return *s >> 24; }
/* a file with real blocks; at most 10 seconds */
static void prepare(off_t want) {
	char *b = block(1 << 20); double e = now() + 10;
	snprintf(name, sizeof name, "%s/p18-volume-%d", dir, getpid());
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC | direct, 0600);
	if (fd < 0) { direct = 0; fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600); }
	if (fd < 0) { perror(name); exit(1); }
	for (size = 0; size < want && now() < e; size += 1 << 20)
		if (pwrite(fd, b, 1 << 20, size) < 0) { perror("write"); exit(1); }
	fsync(fd);
}
static void *commit(void *p) {
	char f[300]; char *b = block(8192); off_t o = 0;
	snprintf(f, sizeof f, "%s/p18-wal-%ld", dir, (long)p);
	int w = open(f, O_RDWR | O_CREAT | O_TRUNC, 0600); unlink(f);
	if (w < 0) exit(1);
	for (;;) { if (pwrite(w, b, 8192, o) < 0) exit(1); fdatasync(w); o = (o + 8192) % (16 << 20); }
	return p;
}
static void *archive(void *p) {
	size_t n = 1 << 20; char *b = block(n); off_t o = (long)p * (size / 4) & ~(off_t)(n - 1); volatile unsigned sum = 0;
	for (;;) { if (pread(fd, b, n, o) < 0) exit(1); for (size_t i = 0; i < n; i += 4096) sum += b[i]; o = o + n >= size ? 0 : o + n; if (!direct) posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); }
	return p;
}
static void *lookup(void *p) {
	char *b = block(8192); uint64_t s = (long)p * 7919 + 1;
	for (;;) if (pread(fd, b, 8192, (off_t)(rnd(&s) % (size / 8192)) * 8192) < 0) exit(1);
	return p;
}
static void start(int n, void *(*f)(void *)) { for (long i = 0; i < n; i++) { pthread_t t; pthread_create(&t, 0, f, (void *)i); } }
int main(int c, char **v) {
	const char *mode = c > 1 ? v[1] : "commit"; int n = c > 2 ? atoi(v[2]) : 8;
	if (getenv("P18_DIR")) dir = getenv("P18_DIR");
	signal(SIGTERM, end); signal(SIGINT, end);
	if (!strcmp(mode, "commit")) start(n, commit);
	else if (!strcmp(mode, "archive")) { prepare(700l << 20); start(4, archive); }
	else if (!strcmp(mode, "lookup")) { prepare(500l << 20); start(n, lookup); }
	else if (!strcmp(mode, "restore")) {
		char *b = block(1 << 20); double t = now(); int told = 0;
		snprintf(name, sizeof name, "%s/p18-restore-%d", dir, getpid());
		fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600); if (fd < 0) return 1;
		for (off_t o = 0;; o = (o + (1 << 20)) % ((off_t)n << 20)) {
			b[o >> 20 & 4095]++;
			if (pwrite(fd, b, 1 << 20, o) < 0) return 1;
			if (!told && now() - t > 6) { told = 1; puts("ready"); fflush(stdout); }
		}
	} else { /* journal: lines into a file that nothing rotates */
		char line[65536]; double rate = atof(v[2]) * 1048576, t; off_t o = 0, max = (off_t)(c > 3 ? atoi(v[3]) : 1200) << 20;
		for (size_t i = 0; i < sizeof line; i += 128) { memset(line + i, '.', 127); memcpy(line + i, "DEBUG request handled in 12 ms, headers: ", 41); line[i + 127] = '\n'; }
		snprintf(name, sizeof name, "%s/p18-debug.log", dir);
		fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600); if (fd < 0) return 1;
		puts("ready"); fflush(stdout);
		for (t = now();;) {
			while (o < max && o < (now() - t) * rate) { if (write(fd, line, sizeof line) < 0) return 1; o += sizeof line; }
			usleep(20000);
		}
	}
	sleep(2);
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
