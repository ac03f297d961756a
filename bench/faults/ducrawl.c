// An online IDE computes the size of each workspace again and again, as du(1) does, over 8,000 files, in two processes.
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
#include <ftw.h>
static void fail(const char *what) { perror(what); exit(1); }
static void ready(void) { printf("ready\n"); fflush(stdout); }
static long total;
static int add(const char *p, const struct stat *s, int t, struct FTW *w) { (void)p; (void)t; (void)w; total += s->st_blocks; return 0; }
int main(void) {
	char n[128];
	mkdir("/data/workspaces", 0700);
	for (int i = 0; i < 160; i++) {
		snprintf(n, sizeof n, "/data/workspaces/user-%d", i); mkdir(n, 0700);
		for (int j = 0; j < 50; j++) { snprintf(n, sizeof n, "/data/workspaces/user-%d/file-%d", i, j); int f = open(n, O_WRONLY | O_CREAT, 0600); if (f < 0) fail("open"); close(f); }
	}
	if (fork()) ready();
	for (;;) nftw("/data/workspaces", add, 64, FTW_PHYS);
}
