// fanoutburst CLIENTS BURST_MS EVERY_MS: a chat gateway sends the news of the last seconds to each of its CLIENTS, one small
// message for each event, over loopback in this network namespace; a thread of clients reads all of them.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }
static void fail(const char *w) { perror(w); exit(1); }
static int ep;
static void *readers(void *p) {
	struct epoll_event e[64];
	static char b[2048];
	for (;;) {
		int n = epoll_wait(ep, e, 64, -1);
		for (int i = 0; i < n; i++) while (recv(e[i].data.fd, b, 220, MSG_DONTWAIT) > 0);
	}
	return p;
}
int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 400, on = 1;
	long burst = argc > 2 ? atol(argv[2]) : 1400, every = argc > 3 ? atol(argv[3]) : 4000;
	struct rlimit r = {4096, 4096};
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof a;
	char msg[220];
	if (n > 1500) n = 1500;
	memset(msg, 'm', sizeof msg);
	setrlimit(RLIMIT_NOFILE, &r);
	int l = socket(AF_INET, SOCK_STREAM, 0), *s = calloc(n, sizeof *s);
	if (bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 1024) || getsockname(l, (struct sockaddr *)&a, &len)) fail("listen");
	ep = epoll_create1(0);
	for (int i = 0; i < n; i++) {
		int c = socket(AF_INET, SOCK_STREAM, 0);
		if (c < 0 || connect(c, (struct sockaddr *)&a, sizeof a)) fail("connect");
		struct epoll_event e = {.events = EPOLLIN, .data.fd = c};
		epoll_ctl(ep, EPOLL_CTL_ADD, c, &e);
		s[i] = accept(l, NULL, NULL);
		setsockopt(s[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	}
	pthread_t t;
	pthread_create(&t, NULL, readers, NULL);
	pthread_create(&t, NULL, readers, NULL);
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		double start = now();
		while (now() < start + burst) for (int i = 0; i < n; i++) send(s[i], msg, sizeof msg, MSG_DONTWAIT | MSG_NOSIGNAL);
		double left = start + every - now();
		if (left > 0) usleep(left * 1000);
	}
}
