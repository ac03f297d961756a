// herd WORKERS CLIENTS: a pre-forked server. Each worker waits for the same socket, epoll(7)
// without EPOLLEXCLUSIVE, so each new connection wakes all of them and one gets it, accept(2).
// The clients make a connection for each request, and reset it, so that no port stays in TIME_WAIT.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static int server;
static struct sockaddr_in at;

static void serve(void) {
	struct epoll_event e = {.events = EPOLLIN};
	int ep = epoll_create1(0);
	if (epoll_ctl(ep, EPOLL_CTL_ADD, server, &e)) _exit(1);
	for (;;) {
		epoll_wait(ep, &e, 1, -1);
		int c = accept4(server, NULL, NULL, SOCK_CLOEXEC); // the socket does not block: most get EAGAIN
		if (c < 0) continue;
		if (write(c, "x", 1) < 0) perror("write");
		close(c);
	}
}

static void ask(void) {
	struct linger l = {1, 0};
	char b;
	for (;;) {
		int c = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(c, SOL_SOCKET, SO_LINGER, &l, sizeof l);
		if (connect(c, (struct sockaddr *)&at, sizeof at) == 0) while (read(c, &b, 1) < 0);
		close(c);
	}
}

int main(int argc, char **argv) {
	int workers = argc > 1 ? atoi(argv[1]) : 0, clients = argc > 2 ? atoi(argv[2]) : 0;
	socklen_t n = sizeof at;
	if (workers < 1 || workers > 400 || clients < 1 || clients > 64) { fprintf(stderr, "usage: herd WORKERS CLIENTS\n"); return 2; }
	server = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	at.sin_family = AF_INET;
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(server, (struct sockaddr *)&at, sizeof at) || listen(server, 512) || getsockname(server, (struct sockaddr *)&at, &n)) { perror("listen"); return 1; }
	for (int i = 0; i < workers; i++) if (fork() == 0) serve();
	for (int i = 0; i < clients; i++) if (fork() == 0) ask();
	printf("ready\n");
	fflush(stdout);
	pause();
	return 0;
}
