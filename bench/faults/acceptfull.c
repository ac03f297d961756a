// A web server has used up its descriptors (ulimit -n 256): accept(2) fails with EMFILE, the listener stays readable, the event loop spins.
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
#include <arpa/inet.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
static void fail(const char *what) { perror(what); exit(1); }
static void ready(void) { printf("ready\n"); fflush(stdout); }
int main(void) {
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof a;
	int l = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	if (bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 64) || getsockname(l, (struct sockaddr *)&a, &len)) fail("listen");
	if (fork() == 0) { // keep-alive clients that hold their connections, and new ones that come
		close(l);
		for (int i = 0; i < 320; i++) { int s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0); connect(s, (struct sockaddr *)&a, sizeof a); usleep(2000); }
		for (;;) { int s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0); connect(s, (struct sockaddr *)&a, sizeof a); usleep(100000); close(s); }
	}
	struct rlimit r = {256, 256};
	setrlimit(RLIMIT_NOFILE, &r);
	int e = epoll_create1(0), full = 0;
	struct epoll_event v = {.events = EPOLLIN, .data.fd = l}, got[16];
	epoll_ctl(e, EPOLL_CTL_ADD, l, &v);
	for (;;) {
		epoll_wait(e, got, 16, -1);
		int c = accept4(l, NULL, NULL, SOCK_NONBLOCK);
		if (c < 0 && errno == EMFILE && !full) { full = 1; ready(); }
	}
}
