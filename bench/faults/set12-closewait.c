// set12-closewait: a server that forgets to close the connections which its clients have closed: sockets in CLOSE_WAIT up to
// its limit of 1024 open files.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
int main(void) {
	struct rlimit r = {1024, 1024};
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(8080), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int s = socket(AF_INET, SOCK_STREAM, 0), one = 1, full = 0, n = 0;
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	setrlimit(RLIMIT_NOFILE, &r);
	if (bind(s, (void *)&a, sizeof a) || listen(s, 128)) { perror("listen"); return 1; }
	if (fork() == 0) for (int i = 0;; i++) { // the clients
		int c = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(c, (void *)&a, sizeof a) == 0 && write(c, "GET / HTTP/1.0\r\n\r\n", 18) < 0) perror("write");
		close(c);
		usleep(i < 1050 ? 2000 : 2000000);
	}
	for (;;) {
		int c = accept(s, NULL, NULL);
		if (c >= 0) n++;
		else {
			if (!full++) { printf("accept: %s after %d\nready\n", strerror(errno), n); fflush(stdout); }
			usleep(1000000);
		}
	}
}
