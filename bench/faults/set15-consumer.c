// consumer THREADS: event loops that never read the event that wakes them, so that epoll_wait returns at once each time.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
static void *loop(void *p) {
	int ep = epoll_create1(0), fd = eventfd(1, 0);
	struct epoll_event e = {.events = EPOLLIN};
	struct timespec t;
	epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
	for (;;) { epoll_wait(ep, &e, 1, 1000); clock_gettime(CLOCK_MONOTONIC, &t); }
	return p;
}
int main(int argc, char **argv) {
	for (int i = 0; i < (argc > 1 ? atoi(argv[1]) : 1); i++) { pthread_t t; pthread_create(&t, NULL, loop, NULL); }
	printf("ready\n"); fflush(stdout);
	pause();
	return 0;
}
