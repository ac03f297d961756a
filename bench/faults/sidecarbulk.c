// sidecarbulk STREAMS: an export runs through the proxy beside it: a client sends, a proxy reads and sends on, a server reads, all over
// loopback in this network namespace; each byte is copied four times.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#define B 65536
static int pipe_tcp(int *to) { // a connected pair over loopback: returns the reading end
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof a;
	int l = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 8) || getsockname(l, (struct sockaddr *)&a, &n)) { perror("listen"); exit(1); }
	*to = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(*to, (struct sockaddr *)&a, sizeof a)) { perror("connect"); exit(1); }
	int r = accept(l, NULL, NULL);
	close(l);
	return r;
}
struct hop { int in, out; };
static void *hop(void *p) {
	struct hop *h = p;
	char *b = calloc(1, B);
	for (ssize_t n = B;;) {
		if (h->in >= 0 && (n = read(h->in, b, B)) <= 0) return NULL;
		for (ssize_t at = 0; h->out >= 0 && at < n;) { ssize_t w = write(h->out, b + at, n - at); if (w <= 0) return NULL; at += w; }
	}
}
int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 3;
	for (int i = 0; i < n; i++) {
		struct hop *h = calloc(3, sizeof *h);
		h[0].in = -1;
		h[1].in = pipe_tcp(&h[0].out);
		h[2].in = pipe_tcp(&h[1].out);
		h[2].out = -1;
		for (int k = 0; k < 3; k++) { pthread_t t; pthread_create(&t, NULL, hop, &h[k]); }
	}
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
