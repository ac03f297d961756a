// A CI runner removes node_modules and unpacks it again: 6,000 small files in 500 directories, without a pause.
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
static int rm(const char *p, const struct stat *s, int t, struct FTW *w) { (void)s; (void)t; (void)w; return remove(p); }
int main(void) {
	static char b[3000];
	char d[128], n[200];
	for (int round = 0;; round++) {
		nftw("/data/node_modules", rm, 32, FTW_DEPTH | FTW_PHYS);
		mkdir("/data/node_modules", 0700);
		for (int i = 0; i < 250; i++) {
			snprintf(d, sizeof d, "/data/node_modules/package-%d", i); mkdir(d, 0700);
			snprintf(d, sizeof d, "/data/node_modules/package-%d/lib", i); mkdir(d, 0700);
			for (int j = 0; j < 24; j++) {
				snprintf(n, sizeof n, "%s/module-%d.js", d, j);
				int fd = open(n, O_WRONLY | O_CREAT | O_TRUNC, 0600);
				if (fd < 0) fail("open");
				if (write(fd, b, 500 + 100 * j) < 0) fail("write");
				fchmod(fd, 0644); close(fd);
			}
		}
		if (round == 0) ready();
	}
}
