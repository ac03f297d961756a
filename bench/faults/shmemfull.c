// A model server keeps 122 MiB in shared memory, which counts against its limit of 128 MiB.
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
int main(void) {
	long n = 122L << 20;
	char *m = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (m == MAP_FAILED) fail("mmap");
	for (long i = 0; i < n; i += 4096) m[i] = 1;
	ready();
	for (;;) { for (int i = 0; i < 100; i++) m[random() % n]++; usleep(20000); }
}
