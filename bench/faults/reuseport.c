// reuseport WORKERS RATE: WORKERS listen on one port with SO_REUSEPORT, and one of them hangs in a request for ever. The kernel still
// gives it its share of connections; its queue is full, and RATE clients a second meet timeouts in one of WORKERS cases.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
static void *serve(void *p) {
	for (;;) {
		char b[64];
		int c = accept((int)(long)p, NULL, NULL);
		if (c < 0) continue;
		if (recv(c, b, sizeof b, 0) > 0 && send(c, "ok\n", 3, MSG_NOSIGNAL) < 0) perror("send");
		close(c);
	}
	return NULL;
}
int main(int argc, char **argv) {
	int workers = argc > 1 ? atoi(argv[1]) : 4, rate = argc > 2 ? atoi(argv[2]) : 100, on = 1;
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(8080)};
	for (int i = 0; i < workers; i++) {
		int l = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(l, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
		if (bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 64)) { perror("listen"); return 1; }
		pthread_t t;
		if (i) pthread_create(&t, NULL, serve, (void *)(long)l);
	}
	static int open_[4096];
	static time_t since[4096];
	unsigned head = 0, tail = 0;
	for (unsigned n = 0;; n++) {
		int c = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		if (c >= 0) {
			struct pollfd p = {c, POLLOUT, 0};
			char b[8];
			connect(c, (struct sockaddr *)&a, sizeof a);
			if (poll(&p, 1, 20) == 1) send(c, "GET /\n", 6, MSG_NOSIGNAL);
			p.events = POLLIN;
			if (poll(&p, 1, 5) == 1 && recv(c, b, sizeof b, 0) >= 0) close(c);
			else { open_[head % 4096] = c; since[head++ % 4096] = time(NULL); }
		}
		while (tail != head && (time(NULL) - since[tail % 4096] > 3 || head - tail > 900)) close(open_[tail++ % 4096]); // the client's timeout
		if (n == 400) { printf("ready\n"); fflush(stdout); }
		if (n > 400) usleep(1000000 / rate);
	}
}
