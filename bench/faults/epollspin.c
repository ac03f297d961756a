// An event loop keeps a connection whose peer has gone in its level-triggered epoll set and never reads it: epoll_wait(2) returns at once, for ever.
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
#include <sys/epoll.h>
#include <sys/socket.h>
static void fail(const char *what) { perror(what); exit(1); }
static void ready(void) { printf("ready\n"); fflush(stdout); }
static void *loop(void *p) {
	int s[2], e = epoll_create1(0);
	if (e < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, s)) fail("socketpair");
	close(s[1]);
	struct epoll_event v = {.events = EPOLLIN | EPOLLRDHUP}, got[8];
	epoll_ctl(e, EPOLL_CTL_ADD, s[0], &v);
	for (;;) epoll_wait(e, got, 8, 1000);
	return p;
}
int main(void) {
	for (int i = 0; i < 3; i++) { pthread_t t; pthread_create(&t, NULL, loop, NULL); }
	ready();
	pause();
	return 0;
}
