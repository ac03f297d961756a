// unread MOST PER_SECOND: a service opens a Unix socket to a log daemon for each request and
// writes to it, but none reads, unix(7). The kernel keeps 160 KiB for each and counts them to
// the container: memory that no process shows as its own.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv) {
	static char line[16 << 10];
	long most = argc > 1 ? atol(argv[1]) : 0, rate = argc > 2 ? atol(argv[2]) : 0, n = 0;
	struct rlimit r;
	if (most < 1 || most > 9000 || rate < 1) { fprintf(stderr, "usage: unread MOST PER_SECOND\n"); return 2; }
	if (getrlimit(RLIMIT_NOFILE, &r) == 0) { r.rlim_cur = r.rlim_max; setrlimit(RLIMIT_NOFILE, &r); }
	printf("ready\n");
	fflush(stdout);
	for (int s[2]; n < most && socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, s) == 0; n++) {
		for (int i = 0; i < 10; i++) if (write(s[0], line, sizeof line) < 0) break;
		usleep(1000000 / rate);
	}
	fprintf(stderr, "%ld sockets\n", n);
	for (;;) pause();
}
