// A recorder writes 3 MiB a second round and round in a file of fixed size, 64 MiB, and syncs it every two seconds.
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
	static char b[300 << 10];
	int fd = open("/data/ring", O_RDWR | O_CREAT, 0600);
	if (fd < 0) fail("open");
	for (long i = 0; i < 64L << 20; i += sizeof b) if (pwrite(fd, b, sizeof b, i) < 0) fail("write");
	fdatasync(fd);
	ready();
	for (unsigned long k = 0;; k++) { memset(b, k, sizeof b); if (pwrite(fd, b, sizeof b, k % 200 * (long)sizeof b) < 0) fail("write"); if (k % 20 == 0) fdatasync(fd); usleep(100000); }
}
