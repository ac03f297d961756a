// connections COUNT PER_SECOND: a chat service with COUNT open connections of its own clients over
// loopback, of which PER_SECOND say something each second, epoll(7).
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv) {
	int count = argc > 1 ? atoi(argv[1]) : 0, rate = argc > 2 ? atoi(argv[2]) : 0;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof at;
	struct rlimit r;
	char b[64] = "hello";
	if (count < 1 || count > 4000 || rate < 1) { fprintf(stderr, "usage: connections COUNT PER_SECOND\n"); return 2; }
	if (getrlimit(RLIMIT_NOFILE, &r) == 0) { r.rlim_cur = r.rlim_max; setrlimit(RLIMIT_NOFILE, &r); }
	int s = socket(AF_INET, SOCK_STREAM, 0), ep = epoll_create1(0), *client = calloc(count, sizeof *client);
	if (bind(s, (struct sockaddr *)&at, sizeof at) || listen(s, 64) || getsockname(s, (struct sockaddr *)&at, &n)) { perror("listen"); return 1; }
	for (int i = 0; i < count; i++) {
		client[i] = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(client[i], (struct sockaddr *)&at, sizeof at)) { perror("connect"); return 1; }
		struct epoll_event e = {.events = EPOLLIN, .data.fd = accept(s, NULL, NULL)};
		if (epoll_ctl(ep, EPOLL_CTL_ADD, e.data.fd, &e)) { perror("accept"); return 1; }
	}
	printf("ready\n");
	fflush(stdout);
	for (unsigned i = 0;; i++) {
		struct epoll_event e;
		if (write(client[i * 7919u % count], b, 16) != 16 || epoll_wait(ep, &e, 1, -1) != 1 || read(e.data.fd, b, sizeof b) < 1) { perror("talk"); return 1; }
		usleep(1000000 / rate);
	}
}
