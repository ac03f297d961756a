// pollmany CONNECTIONS PER_SECOND: an old server gives all of its connections to each poll(2), and
// one of them always has an event. With 0 a second the server does not pause.
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long n = argc > 2 ? atol(argv[1]) : 0, rate = argc > 2 ? atol(argv[2]) : 0;
	static struct pollfd fds[20000];
	struct rlimit r;
	if (n < 1 || n > 20000) { fprintf(stderr, "usage: pollmany CONNECTIONS PER_SECOND\n"); return 2; }
	if (getrlimit(RLIMIT_NOFILE, &r) == 0) { r.rlim_cur = r.rlim_max; setrlimit(RLIMIT_NOFILE, &r); }
	for (long i = 0; i < n; i++) {
		fds[i].fd = eventfd(i == n - 1, EFD_NONBLOCK);
		fds[i].events = POLLIN;
		if (fds[i].fd < 0) { perror("eventfd"); return 1; }
	}
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		if (poll(fds, n, 1000) != 1) { perror("poll"); return 1; }
		if (rate > 0) usleep(1000000 / rate);
	}
}
