// A database without a pooler: shared buffers of 160 MiB, and each new connection is a process that touches all of them, so its page tables remain.
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
static void fail(const char *what) { perror(what); exit(1); }
static void ready(void) { printf("ready\n"); fflush(stdout); }
static long read_long(const char *n) { char b[64]; int f = open(n, O_RDONLY); if (f < 0) return -1; ssize_t r = read(f, b, 63); close(f); if (r <= 0) return -1; b[r] = 0; return b[0] == 'm' ? -1 : atol(b); }
int main(void) {
	long n = 160L << 20, sum = 0, max = read_long("/sys/fs/cgroup/memory.max");
	char *m = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (m == MAP_FAILED) fail("mmap");
	for (long i = 0; i < n; i += 4096) m[i] = 1;
	for (int c = 0; c < 240; c++) {
		long cur = read_long("/sys/fs/cgroup/memory.current");
		if (max > 0 && cur > max / 100 * 95) break;
		pid_t p = fork();
		if (p == 0) { for (long i = 0; i < n; i += 4096) sum += m[i]; for (;;) { usleep(900000); sum += m[random() % n]; } }
		if (p < 0) break;
		if (c == 60) ready();
		usleep(c < 60 ? 10000 : 220000);
	}
	for (;;) pause();
}
