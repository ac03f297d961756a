// pipepages PAGES PER_SECOND: a runner keeps the pipes of jobs that have ended. Pages of pipes count
// for the user of the whole host, pipe(7), pipe-user-pages-soft: beyond it root's new pipes in all
// containers have two pages.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long most = argc > 2 ? atol(argv[1]) : 0, rate = argc > 2 ? atol(argv[2]) : 0, pages = 0;
	struct rlimit r;
	int fds[2];
	if (most < 1 || most > 20000 || rate < 1) { fprintf(stderr, "usage: pipepages PAGES PER_SECOND\n"); return 2; }
	if (getrlimit(RLIMIT_NOFILE, &r) == 0) { r.rlim_cur = r.rlim_max; setrlimit(RLIMIT_NOFILE, &r); }
	printf("ready\n");
	fflush(stdout);
	while (pages < most && pipe(fds) == 0) {
		pages += fcntl(fds[0], F_GETPIPE_SZ) / 4096;
		usleep(1000000 / rate);
	}
	fprintf(stderr, "%ld pages\n", pages);
	for (;;) pause();
}
