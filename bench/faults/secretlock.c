// A secrets service locks each key in memory, mlock(2), and is near RLIMIT_MEMLOCK: further keys cannot be locked.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <sys/resource.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void fail(const char *what) { perror(what); exit(1); }
static void ready(void) { printf("ready\n"); fflush(stdout); }
static void work(double s) { for (double e = now() + s; now() < e;) for (volatile int i = 0; i < 1000; i++); }
int main(void) {
	struct rlimit r;
	getrlimit(RLIMIT_MEMLOCK, &r);
	if (r.rlim_cur == RLIM_INFINITY || r.rlim_cur > 16 << 20) { r.rlim_cur = r.rlim_max = 16 << 20; if (setrlimit(RLIMIT_MEMLOCK, &r)) fail("setrlimit"); }
	size_t n = r.rlim_cur / 100 * 97 & ~4095UL;
	char *m = mmap(NULL, n + (1 << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m == MAP_FAILED) fail("mmap");
	for (size_t i = 0; i < n; i += 65536) if (mlock(m + i, n - i < 65536 ? n - i : 65536)) { perror("mlock"); break; }
	ready();
	for (;;) { if (mlock(m + n, 1 << 20) == 0) munlock(m + n, 1 << 20); work(0.001); usleep(100000); }
}
