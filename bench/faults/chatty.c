// chatty PAIRS: clients and servers of one host exchange messages of one byte over loopback,
// tcp(7) with TCP_NODELAY: an interface that asks for each field of each record by itself. Each
// message and each acknowledgement is a packet.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv) {
	int pairs = argc > 1 ? atoi(argv[1]) : 0, one = 1;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof at;
	if (pairs < 1 || pairs > 64) { fprintf(stderr, "usage: chatty PAIRS\n"); return 2; }
	int s = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(s, (struct sockaddr *)&at, sizeof at) || listen(s, 64) || getsockname(s, (struct sockaddr *)&at, &n)) { perror("listen"); return 1; }
	for (int i = 0; i < pairs; i++) {
		int ends[2] = {socket(AF_INET, SOCK_STREAM, 0)};
		if (connect(ends[0], (struct sockaddr *)&at, sizeof at) || (ends[1] = accept(s, NULL, NULL)) < 0) { perror("connect"); return 1; }
		for (int e = 0; e < 2; e++) {
			setsockopt(ends[e], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
			if (fork()) continue;
			char c = 1;
			if (e == 0 && write(ends[e], &c, 1) != 1) _exit(1);
			while (read(ends[e], &c, 1) == 1 && write(ends[e], &c, 1) == 1);
			_exit(1);
		}
	}
	printf("ready\n");
	fflush(stdout);
	pause();
	return 0;
}
