// reconnect CLIENTS: clients connect to a server that is down, and try again at once, connect(2),
// ECONNREFUSED.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long clients = argc > 1 ? atol(argv[1]) : 0;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(5432), .sin_addr = {htonl(INADDR_LOOPBACK)}};
	if (clients < 1 || clients > 64) { fprintf(stderr, "usage: reconnect CLIENTS\n"); return 2; }
	printf("ready\n");
	fflush(stdout);
	for (long i = 1; i < clients; i++)
		if (fork() == 0) break;
	for (;;) {
		int s = socket(AF_INET, SOCK_STREAM, 0);
		if (s < 0 || connect(s, (struct sockaddr *)&at, sizeof at) == 0 || errno != ECONNREFUSED) { perror("connect"); return 1; }
		close(s);
	}
}
