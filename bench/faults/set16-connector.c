/* A connector: accepts connections of its clients and forgets to close them, up to the limit of descriptors. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv) {
	int limit = argc > 1 ? atoi(argv[1]) : 1024, held = 0;
	struct rlimit r = { limit, limit };
	setrlimit(RLIMIT_NOFILE, &r);
	int l = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof a;
	if (bind(l, (void *)&a, sizeof a) || listen(l, 128) || getsockname(l, (void *)&a, &len)) { perror("listen"); return 1; }
	for (long k = 0;; k++) {
		int c = socket(AF_INET, SOCK_STREAM, 0);
		if (c >= 0 && connect(c, (void *)&a, sizeof a) == 0) {
			int s = accept(l, 0, 0);
			if (s >= 0) held++;
			else if (k % 10 == 0) { printf("accept: %s\n", strerror(errno)); fflush(stdout); }
		}
		if (c >= 0) { send(c, "GET", 3, MSG_NOSIGNAL); close(c); }
		if (held == limit - 30) { puts("ready"); fflush(stdout); held++; }
		if (held > limit - 30) usleep(held < limit - 10 ? 3000000 : 1000000);
	}
}
