// close-wait LIMIT START RATE: a server which forgets close(2) after its client has closed: each connection stays in
// CLOSE-WAIT and keeps a descriptor. It may have LIMIT descriptors, loses START at once and RATE a second after that.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static void fail(const char *what) { perror(what); exit(1); }
int main(int argc, char **argv) {
	int limit = argc > 1 ? atoi(argv[1]) : 2048, start = argc > 2 ? atoi(argv[2]) : 800, rate = argc > 3 ? atoi(argv[3]) : 8;
	struct rlimit r = {limit, limit};
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof a;
	if (rate < 1 || setrlimit(RLIMIT_NOFILE, &r)) fail("setrlimit");
	int l = socket(AF_INET, SOCK_STREAM, 0);
	if (l < 0 || bind(l, (void *)&a, n) || listen(l, 64) || getsockname(l, (void *)&a, &n)) fail("listen");
	if (fork() == 0) { // the clients
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (int i = 0;; i++) {
			int s = socket(AF_INET, SOCK_STREAM, 0);
			if (s < 0 || connect(s, (void *)&a, n)) fail("connect");
			close(s);
			if (i >= start) usleep(1000000 / rate);
		}
	}
	for (int i = 0; i < limit * 97 / 100 - 8; i++) {
		if (accept(l, NULL, NULL) < 0) fail("accept");
		if (i == start) { printf("ready\n"); fflush(stdout); }
	}
	for (;;) pause();
}
