// mapsparse THREADS MAPPINGS: a crash reporter looks up the library of each frame in /proc/self/maps, and the process has many
// mappings: each request reads all lines, which the kernel formats one by one.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
static void *report(void *p) {
	char b[4096];
	for (;;) {
		int f = open("/proc/self/maps", O_RDONLY);
		if (f < 0) { perror("maps"); return p; }
		while (read(f, b, sizeof b) > 0);
		close(f);
	}
}
int main(int argc, char **argv) {
	int threads = argc > 1 ? atoi(argv[1]) : 3, n = argc > 2 ? atoi(argv[2]) : 12000;
	for (int i = 0; i < n; i++) if (mmap(NULL, 4096, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) { perror("mmap"); return 1; }
	for (int i = 0; i < threads; i++) { pthread_t t; pthread_create(&t, NULL, report, NULL); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
