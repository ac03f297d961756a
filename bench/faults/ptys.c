// ptys MOST PER_SECOND: a terminal service does not close the pseudo terminals of sessions that
// have ended, pty(7). /proc/sys/kernel/pty/max holds for the whole host, and "reserve" of them
// cannot be had in containers.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long most = argc > 1 ? atol(argv[1]) : 0, rate = argc > 2 ? atol(argv[2]) : 0, n = 0;
	struct rlimit r;
	if (most < 1 || most > 4000 || rate < 1) { fprintf(stderr, "usage: ptys MOST PER_SECOND\n"); return 2; }
	if (getrlimit(RLIMIT_NOFILE, &r) == 0) { r.rlim_cur = r.rlim_max; setrlimit(RLIMIT_NOFILE, &r); }
	if (open("/dev/ptmx", O_RDWR | O_NOCTTY) < 0) { perror("/dev/ptmx"); return 1; }
	printf("ready\n");
	fflush(stdout);
	for (n = 1; n < most && open("/dev/ptmx", O_RDWR | O_NOCTTY) >= 0; n++) usleep(1000000 / rate);
	fprintf(stderr, "%ld terminals\n", n);
	for (;;) pause();
}
