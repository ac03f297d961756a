// burstaccept CLIENTS: a batch of CLIENTS connects each two seconds to a server that accepts only 100 ms later: its queue of 512 holds all of them, and
// none is lost.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
static struct sockaddr_in a = {.sin_family = AF_INET};
static int n = 90;
static void *clients(void *p) {
	int *c = calloc(n, sizeof *c);
	for (;; sleep(2)) {
		for (int i = 0; i < n; i++) { c[i] = socket(AF_INET, SOCK_STREAM, 0); if (connect(c[i], (struct sockaddr *)&a, sizeof a)) perror("connect"); }
		for (int i = 0; i < n; i++) { char b[4]; if (recv(c[i], b, sizeof b, 0) < 0) perror("recv"); close(c[i]); }
	}
	return p;
}
int main(int argc, char **argv) {
	socklen_t len = sizeof a;
	pthread_t t;
	int l = socket(AF_INET, SOCK_STREAM, 0);
	if (argc > 1) n = atoi(argv[1]);
	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 512) || getsockname(l, (struct sockaddr *)&a, &len)) { perror("listen"); return 1; }
	pthread_create(&t, NULL, clients, NULL);
	printf("ready\n");
	fflush(stdout);
	for (int k = 0;; k++) {
		int s = accept(l, NULL, NULL);
		if (k % n == 0) usleep(100000);
		if (s >= 0) { if (send(s, "ok", 2, MSG_NOSIGNAL) < 0) perror("send"); close(s); }
	}
}
