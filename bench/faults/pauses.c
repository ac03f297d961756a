// pauses CLIENTS STOP_MS RUN_MS: a server that stands still for STOP_MS, as a runtime does that
// collects garbage, and serves for RUN_MS. Its queue is that of listen(2)'s old default, 128; the
// kernel drops the handshakes of the other clients, which wait and try again.
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_in at;
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }

static void *client(void *p) {
	char b;
	struct linger l = {1, 0};
	for (;;) {
		int c = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(c, SOL_SOCKET, SO_LINGER, &l, sizeof l);
		if (connect(c, (struct sockaddr *)&at, sizeof at) == 0 && read(c, &b, 1) < 0) perror("read");
		close(c);
		usleep(20000);
	}
	return p;
}

int main(int argc, char **argv) {
	int clients = argc > 1 ? atoi(argv[1]) : 0, stop = argc > 2 ? atoi(argv[2]) : 0, run = argc > 3 ? atoi(argv[3]) : 0;
	socklen_t n = sizeof at;
	pthread_attr_t a;
	if (clients < 1 || clients > 800 || stop < 1 || run < 1) { fprintf(stderr, "usage: pauses CLIENTS STOP_MS RUN_MS\n"); return 2; }
	int s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	at.sin_family = AF_INET;
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(s, (struct sockaddr *)&at, sizeof at) || listen(s, 128) || getsockname(s, (struct sockaddr *)&at, &n)) { perror("listen"); return 1; }
	pthread_attr_init(&a);
	pthread_attr_setstacksize(&a, 65536);
	for (int i = 0; i < clients; i++) { pthread_t t; if (pthread_create(&t, &a, client, NULL)) { perror("pthread_create"); return 1; } }
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		usleep(stop * 1000);
		for (double until = now() + run; now() < until;) {
			int c = accept(s, NULL, NULL);
			if (c < 0) { usleep(1000); continue; }
			if (write(c, "x", 1) < 0) perror("write");
			close(c);
		}
	}
}
