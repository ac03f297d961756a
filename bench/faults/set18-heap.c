/* Memory of services: sessions START_MB MB_PER_S MAX_MB | report MB | index MB HEAP_MB */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void take(size_t n) { volatile char *m = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); if (m == MAP_FAILED) _exit(1); for (size_t i = 0; i < n; i += 4096) m[i] = 1; }
static volatile unsigned char *map; static size_t pages;
static void *search(void *p) { uint64_t s = (long)p * 131 + 7; volatile unsigned x = 0; for (;;) { s = s * 6364136223846793005ull + 1442695040888963407ull; x += map[(s >> 24) % pages * 4096]; } return p; }
int main(int c, char **v) {
	const char *mode = c > 1 ? v[1] : "";
	if (!strcmp(mode, "sessions")) {
		double begin = atof(v[2]), rate = atof(v[3]), max = atof(v[4]), t, have = begin;
		take((size_t)begin << 20);
		puts("ready"); fflush(stdout);
		for (t = now();;) { while (have < max && have < begin + (now() - t) * rate) { take(256 << 10); have += 0.25; } usleep(50000); }
	}
	if (!strcmp(mode, "report")) { /* a parent that starts a worker again whenever it was killed */
		size_t mb = atoi(v[2]); int told = 0;
		for (;;) {
			pid_t p = fork();
			if (p == 0) { for (size_t i = 0; i < mb; i++) { take(1 << 20); usleep(5000); } sleep(1); _exit(0); }
			int st = 0; if (p < 0 || waitpid(p, &st, 0) < 0) { usleep(200000); continue; }
			if (!told) { told = 1; puts("ready"); fflush(stdout); }
			usleep(200000);
		}
	}
	/* index: a mapped file greater than the limit */
	size_t mb = atoi(v[2]); char *b = malloc(1 << 20); double e = now() + 8; size_t i;
	int f = open("/data/p18-segments", O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (f < 0) return 1;
	unlink("/data/p18-segments");
	uint64_t a = 5; for (i = 0; i < 1 << 17; i++) { a = a * 6364136223846793005ull + 1; ((uint64_t *)b)[i] = a; }
	for (i = 0; i < mb && now() < e; i++) if (write(f, b, 1 << 20) < 0) return 1;
	fdatasync(f); free(b);
	if (c > 3) take((size_t)atoi(v[3]) << 20);
	pages = i << 8; map = mmap(0, i << 20, PROT_READ, MAP_SHARED, f, 0);
	if (map == MAP_FAILED) return 1;
	for (long k = 0; k < 6; k++) { pthread_t t; pthread_create(&t, 0, search, (void *)k); }
	sleep(2);
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
