/* A check-in service that accepts one connection every PAUSE milliseconds, and its CLIENTS clients. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static struct sockaddr_in addr;
static volatile long timeouts;

static void *client(void *arg) {
	(void)arg;
	for (;;) {
		int c = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		if (c < 0) { usleep(100000); continue; }
		connect(c, (void *)&addr, sizeof addr);
		struct pollfd p = { c, POLLOUT, 0 };
		if (poll(&p, 1, 1500) <= 0) timeouts++;
		else { p.events = POLLIN; poll(&p, 1, 1000); }
		close(c);
		usleep(20000);
	}
	return 0;
}

int main(int argc, char **argv) {
	int pause_ms = argc > 1 ? atoi(argv[1]) : 100, clients = argc > 2 ? atoi(argv[2]) : 60, backlog = argc > 3 ? atoi(argv[3]) : 16;
	int l = socket(AF_INET, SOCK_STREAM, 0);
	addr.sin_family = AF_INET; addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	socklen_t len = sizeof addr;
	if (bind(l, (void *)&addr, sizeof addr) || listen(l, backlog) || getsockname(l, (void *)&addr, &len)) { perror("listen"); return 1; }
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 65536);
	pthread_t t;
	for (int i = 0; i < clients; i++) pthread_create(&t, &attr, client, 0);
	for (long k = 0;; k++) {
		usleep(pause_ms * 1000);
		int s = accept(l, 0, 0);
		if (s >= 0) { send(s, "ok", 2, MSG_NOSIGNAL); close(s); }
		if (k == 2000 / pause_ms) { puts("ready"); fflush(stdout); }
		if (k % 100 == 99) { printf("%ld check-ins, %ld connections timed out\n", k, timeouts); fflush(stdout); }
	}
}
