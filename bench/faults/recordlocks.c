// Four processes of an embedded database take and release record locks, fcntl(2), 150 times a second each, almost never at once.
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
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void fail(const char *what) { perror(what); exit(1); }
static void ready(void) { printf("ready\n"); fflush(stdout); }
static void work(double s) { for (double e = now() + s; now() < e;) for (volatile int i = 0; i < 1000; i++); }
int main(void) {
	int fd = open("/data/db-shm", O_RDWR | O_CREAT, 0600);
	if (fd < 0) fail("open");
	int id = 0;
	for (int i = 1; i < 4; i++) if (fork() == 0) { id = i; break; }
	if (id == 0) ready();
	for (;;) {
		struct flock l = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 123, .l_len = 1};
		fcntl(fd, F_SETLKW, &l); work(0.0003);
		l.l_type = F_UNLCK; fcntl(fd, F_SETLK, &l);
		usleep(6000);
	}
}
