/* A broker: ARG threads ask epoll for events with a timeout of 0, look at the clock and try to read, without a pause. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static void *run(void *a) {
	int p[2], e = epoll_create1(0);
	struct epoll_event v = {.events = EPOLLIN};
	struct timespec t;
	char b[64];
	(void)a;
	socketpair(AF_UNIX, SOCK_STREAM, 0, p);
	epoll_ctl(e, EPOLL_CTL_ADD, p[0], &v);
	for (;;) {
		epoll_wait(e, &v, 1, 0);
		syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
		if (recv(p[0], b, sizeof b, MSG_DONTWAIT) > 0) puts(b);
	}
	return 0;
}
int main(int c, char **v) {
	pthread_t t;
	for (int i = 0; i < (c > 1 ? atoi(v[1]) : 3); i++) pthread_create(&t, 0, run, 0);
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
