// Healthy: a chat server with 400 idle connections over loopback, each with a message now and then, and 20 short
// connections a second that end in TIME_WAIT.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

static struct sockaddr_in to;
static int connect_to(void) {
	int s = socket(AF_INET, SOCK_STREAM, 0);
	if (s < 0 || connect(s, (struct sockaddr *)&to, sizeof to)) { perror("connect"); exit(1); }
	return s;
}
int main(void) {
	static int clients[400];
	socklen_t n = sizeof to;
	int l = socket(AF_INET, SOCK_STREAM, 0), e = epoll_create1(0);
	to.sin_family = AF_INET; to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (l < 0 || e < 0 || bind(l, (struct sockaddr *)&to, sizeof to) || listen(l, 1024) || getsockname(l, (struct sockaddr *)&to, &n)) { perror("listen"); return 1; }
	if (fork() == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (int i = 0; i < 400; i++) clients[i] = connect_to();
		for (unsigned i = 0;; i++) {
			char c = 'm';
			if (write(clients[i % 400], &c, 1) != 1 || read(clients[i % 400], &c, 1) != 1) exit(1);
			close(connect_to());
			usleep(50000);
		}
	}
	struct epoll_event ev = {.events = EPOLLIN, .data.fd = l};
	epoll_ctl(e, EPOLL_CTL_ADD, l, &ev);
	if (write(1, "ready\n", 6) < 0) return 1;
	for (;;) {
		char c;
		if (epoll_wait(e, &ev, 1, -1) != 1) continue;
		if (ev.data.fd == l) {
			ev.data.fd = accept(l, NULL, NULL);
			ev.events = EPOLLIN;
			if (ev.data.fd >= 0) epoll_ctl(e, EPOLL_CTL_ADD, ev.data.fd, &ev);
		} else if (read(ev.data.fd, &c, 1) != 1 || write(ev.data.fd, &c, 1) != 1) close(ev.data.fd);
	}
}
