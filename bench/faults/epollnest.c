// epollnest WORKERS WIDTH: event loops put their epoll descriptor into another loop's and take it out
// again for each request, epoll_ctl(2). The kernel looks for cycles through WIDTH inner loops under
// one lock of the whole host.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long workers = argc > 2 ? atol(argv[1]) : 0, width = argc > 2 ? atol(argv[2]) : 0;
	struct epoll_event in = {.events = EPOLLIN};
	if (workers < 1 || workers > 64 || width < 1 || width > 500) { fprintf(stderr, "usage: epollnest WORKERS WIDTH\n"); return 2; }
	printf("ready\n");
	fflush(stdout);
	for (long i = 1; i < workers; i++)
		if (fork() == 0) break;
	int outer = epoll_create1(0), middle = epoll_create1(0);
	for (long i = 0; i < width; i++)
		if (epoll_ctl(middle, EPOLL_CTL_ADD, epoll_create1(0), &in) != 0) { perror("inner epoll"); return 1; }
	for (;;)
		if (epoll_ctl(outer, EPOLL_CTL_ADD, middle, &in) != 0 || epoll_ctl(outer, EPOLL_CTL_DEL, middle, NULL) != 0) { perror("epoll_ctl"); return 1; }
}
