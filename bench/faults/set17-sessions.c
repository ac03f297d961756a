/* Keeps sessions in memory: ARG1 MiB at the start, then ARG2 KiB every 100 ms; none ever ends. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
static void add(size_t n) {
	volatile char *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) return;
	for (size_t i = 0; i < n; i += 4096) p[i] = (char)i + 1;
}
int main(int c, char **v) {
	int start = c > 1 ? atoi(v[1]) : 100, step = c > 2 ? atoi(v[2]) : 400;
	for (int i = 0; i < start; i++) add(1 << 20);
	puts("ready"); fflush(stdout);
	for (;;) { add((size_t)step << 10); usleep(100000); }
}
