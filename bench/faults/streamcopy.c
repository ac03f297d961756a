// An analytics job streams through arrays larger than all caches, in two threads, and takes the bandwidth of memory.
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
#define N (48L << 20)
static void *stream(void *p) {
	char *a = malloc(N), *b = malloc(N);
	if (!a || !b) fail("malloc");
	memset(a, 1, N); memset(b, 2, N);
	for (unsigned n = 0;; n++) { memcpy(n % 2 ? a : b, n % 2 ? b : a, N); __asm__ volatile("" ::"r"(a), "r"(b) : "memory"); }
	return p;
}
int main(void) {
	for (int i = 0; i < 2; i++) { pthread_t t; pthread_create(&t, NULL, stream, NULL); }
	ready();
	pause();
	return 0;
}
