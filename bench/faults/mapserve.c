// A file server maps each requested file, reads it and unmaps it, in 12 threads: page faults and the lock of the address space.
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
static void *serve(void *p) {
	unsigned seed = (unsigned)(long)p; long sum = 0;
	for (;;) {
		int fd = open("/data/assets", O_RDONLY);
		if (fd < 0) fail("open");
		char *m = mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, (off_t)(rand_r(&seed) % 8) << 22);
		if (m == MAP_FAILED) fail("mmap");
		for (int i = 0; i < 4 << 20; i += 4096) sum += m[i];
		munmap(m, 4 << 20);
		close(fd);
	}
	return (void *)sum;
}
int main(void) {
	static char b[1 << 20];
	int fd = open("/data/assets", O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (fd < 0) fail("open");
	for (int i = 0; i < 32; i++) { memset(b, i, sizeof b); if (write(fd, b, sizeof b) < 0) fail("write"); }
	close(fd);
	for (long i = 0; i < 12; i++) { pthread_t t; pthread_create(&t, NULL, serve, (void *)i); }
	ready();
	pause();
	return 0;
}
