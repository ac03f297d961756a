/* A supervisor: starts ARG workers; a worker loads its settings, finds them wrong and ends, and is started again at once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static void worker(void) {
	size_t n = 12 << 20;
	volatile char *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) _exit(1);
	for (size_t i = 0; i < n; i += 4096) p[i] = 1;
	volatile double x = 1;
	for (int i = 0; i < 4000000; i++) x = x * 1.0000001 + 0.5;
	_exit(1);
}
static void start(void) {
	if (fork() == 0) {
		execl("/proc/self/exe", "app-worker", "--worker", (char *)0);
		_exit(127);
	}
}
int main(int c, char **v) {
	if (c > 1 && !strcmp(v[1], "--worker")) worker();
	int n = c > 1 ? atoi(v[1]) : 4;
	for (int i = 0; i < n; i++) start();
	puts("ready"); fflush(stdout);
	for (long k = 0;; k++) {
		if (wait(0) < 0) sleep(1);
		if (k % 100 == 0) { printf("worker exited with 1, starts again\n"); fflush(stdout); }
		start();
	}
}
