/* A healthy log shipper: 300 lines a second come into a file; it reads them and sends them on by TCP. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
int main(void) {
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(5044), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	char b[8192];
	int s = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(s, (void *)&a, sizeof a) || listen(s, 16)) { perror("listen"); return 1; }
	if (fork() == 0) {
		int k = accept(s, 0, 0);
		while (read(k, b, sizeof b) > 0);
		_exit(0);
	}
	int w = open("/data/app.log", O_CREAT | O_WRONLY | O_TRUNC, 0644);
	if (fork() == 0)
		for (long n = 0;; n++) {
			for (int i = 0; i < 30; i++) dprintf(w, "2026-11-30T12:00:00Z INFO request %ld.%d took 12 ms and returned 200\n", n, i);
			usleep(100000);
		}
	int r = open("/data/app.log", O_RDONLY), f = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(f, (void *)&a, sizeof a)) perror("connect");
	puts("ready"); fflush(stdout);
	for (;;) {
		ssize_t l;
		while ((l = read(r, b, sizeof b)) > 0)
			if (write(f, b, l) < 0) perror("send");
		usleep(250000);
	}
}
