// hostconfigrun: the agent of a configuration management runs every 6 s on the host: it collects facts in a third of the
// available memory and compiles a catalogue with two threads, and drops all after 3 s.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void *catalogue(void *p) { for (double end = now() + 2.5; now() < end;) for (volatile int i = 0; i < 10000; i++); return p; }
static size_t third(void) {
	char l[128];
	long kib = 600 << 10;
	FILE *f = fopen("/proc/meminfo", "r");
	while (f && fgets(l, sizeof l, f)) if (sscanf(l, "MemAvailable: %ld", &kib) == 1) break;
	if (f) fclose(f);
	size_t n = (size_t)kib * 1024 / 3;
	return n > 320u << 20 ? 320u << 20 : n; // bounded
}
int main(void) {
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		pthread_t t[3];
		size_t n = third();
		for (int i = 0; i < 3; i++) pthread_create(&t[i], NULL, catalogue, NULL);
		char *m = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (m != MAP_FAILED) for (size_t i = 0; i < n; i += 4096) m[i] = 1;
		for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
		if (m != MAP_FAILED) munmap(m, n);
		usleep(3000000);
	}
}
