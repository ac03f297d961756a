/* A queue consumer: THREADS threads ask for work without waiting, and yield when there is none. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static void *consume(void *a) {
	int pair[2], ep = epoll_create1(0);
	char b[64];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return 0;
	struct epoll_event e = { .events = EPOLLIN }, got[8];
	epoll_ctl(ep, EPOLL_CTL_ADD, pair[0], &e);
	(void)a;
	for (;;) {
		if (epoll_wait(ep, got, 8, 0) > 0) return 0;
		recv(pair[0], b, sizeof b, MSG_DONTWAIT);
		sched_yield();
	}
}

int main(int argc, char **argv) {
	long threads = argc > 1 ? atol(argv[1]) : 3;
	pthread_t t;
	for (long i = 0; i < threads; i++) pthread_create(&t, 0, consume, 0);
	sleep(1);
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
