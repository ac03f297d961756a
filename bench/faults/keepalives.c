// keepalives LIMIT PERCENT: a gateway runs with ulimit -n of LIMIT and keeps idle connections to its backends open; PERCENT of its
// descriptors are taken, and it cannot take a burst of new clients.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int argc, char **argv) {
	long limit = argc > 1 ? atol(argv[1]) : 4096, want = limit * (argc > 2 ? atol(argv[2]) : 96) / 100;
	struct rlimit r = {limit, limit};
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof a;
	if (setrlimit(RLIMIT_NOFILE, &r)) { perror("setrlimit"); return 1; }
	int l = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 512) || getsockname(l, (struct sockaddr *)&a, &n)) { perror("listen"); return 1; }
	for (long have = 4; have < want; have += 2) {
		int c = socket(AF_INET, SOCK_STREAM, 0);
		if (c < 0 || connect(c, (struct sockaddr *)&a, sizeof a) || accept(l, NULL, NULL) < 0) { perror("connect"); break; }
	}
	printf("ready\n");
	fflush(stdout);
	for (;;) sleep(1000);
}
