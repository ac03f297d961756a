// set12-backlog: a server with one synchronous worker, 400 ms for each request, and a listen queue of 32, under 100 new
// connections a second.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
int main(void) {
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(8000), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int s = socket(AF_INET, SOCK_STREAM, 0), one = 1, c[400];
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(s, (void *)&a, sizeof a) || listen(s, 32)) { perror("listen"); return 1; }
	if (fork() == 0) for (;;) { // the worker
		char b[256];
		int x = accept(s, NULL, NULL);
		if (x < 0) continue;
		usleep(400000); // waits for a slow upstream
		if (read(x, b, sizeof b) < 0 || send(x, "HTTP/1.0 200 OK\r\n\r\n", 19, MSG_NOSIGNAL) < 0) {}
		close(x);
	}
	for (int i = 0; i < 400; i++) c[i] = -1;
	for (unsigned n = 0;; n++) { // clients that give up after 4 s
		int i = n % 400;
		if (c[i] >= 0) close(c[i]);
		c[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		connect(c[i], (void *)&a, sizeof a);
		if (n == 200) { printf("ready\n"); fflush(stdout); }
		usleep(10000);
	}
}
