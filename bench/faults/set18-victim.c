/* Small services: MODE web|db|cache with its numbers; each paces itself by the CPU time it uses, not by loops. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
static double now(clockid_t c) { struct timespec t; clock_gettime(c, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void burn(double s) {
	double e = now(CLOCK_THREAD_CPUTIME_ID) + s;
	volatile unsigned x = 1;
	while (now(CLOCK_THREAD_CPUTIME_ID) < e)
		for (int i = 0; i < 2000; i++) x = x * 1664525u + 1013904223u;
}
static double work, pause_;
static void *server(void *p) {
	int s = *(int *)p; char b[512]; ssize_t n;
	while ((n = read(s, b, sizeof b)) > 0) { burn(work); if (write(s, b, n) < 0) break; }
	return 0;
}
int main(int c, char **v) {
	const char *mode = c > 1 ? v[1] : "web";
	if (!strcmp(mode, "web")) { /* web WORK_MS PAUSE_MS */
		work = (c > 2 ? atof(v[2]) : 1) / 1e3; pause_ = (c > 3 ? atof(v[3]) : 20) / 1e3;
		int s[2]; pthread_t t; char b[512] = "GET /";
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, s)) return 1;
		pthread_create(&t, 0, server, &s[1]);
		puts("ready"); fflush(stdout);
		for (;;) { if (write(s[0], b, 200) < 0 || read(s[0], b, 200) < 0) return 1; usleep(pause_ * 1e6); }
	}
	if (!strcmp(mode, "db")) { /* db COMMITS_PER_SECOND */
		double rate = c > 2 ? atof(v[2]) : 20; char b[4096]; long n = 0;
		int f = open("/data/p18-accounts.db", O_RDWR | O_CREAT, 0600);
		if (f < 0) return 1;
		memset(b, 7, sizeof b);
		for (int i = 0; i < 1024; i++) if (pwrite(f, b, sizeof b, i * 4096L) < 0) return 1;
		fsync(f);
		puts("ready"); fflush(stdout);
		for (;;) { b[0]++; if (pwrite(f, b, sizeof b, n++ % 1024 * 4096) < 0) return 1; fdatasync(f); burn(0.0005); usleep(1e6 / rate); }
	}
	/* cache MB REQUESTS_PER_SECOND */
	size_t size = (size_t)(c > 2 ? atoi(v[2]) : 200) << 20; double rate = c > 3 ? atof(v[3]) : 100;
	volatile char *m = malloc(size); unsigned long k = 1;
	for (size_t i = 0; i < size; i += 4096) m[i] = (char)i;
	puts("ready"); fflush(stdout);
	for (;;) {
		for (int i = 0; i < 200; i++) { k = k * 6364136223846793005ul + 1442695040888963407ul; m[(k >> 20) % size]++; }
		burn(0.0003); usleep(1e6 / rate);
	}
}
