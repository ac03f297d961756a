// bindproxy LIVE: a proxy binds a source address and a port of a range for each request (haproxy's "source" with ports)
// and closes first, so that each request leaves a port in TIME_WAIT for a minute; it keeps about LIVE of the 28232
// ephemeral ports so.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX 27500
static double when[MAX];
static int server;
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void *upstream(void *p) {
	char b[8];
	for (;;) { int c = accept(server, NULL, NULL); if (c < 0) continue; if (read(c, b, sizeof b) < 0) usleep(10); close(c); }
	return p;
}
int main(int argc, char **argv) {
	struct sockaddr_in at = {.sin_family = AF_INET}, from = {.sin_family = AF_INET};
	int live = argc > 1 ? atoi(argv[1]) : 26500, one = 1, said = 0;
	pthread_t t;
	if (live > MAX) live = MAX;
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK); at.sin_port = htons(8080);
	from.sin_addr.s_addr = htonl(0x7f000002);
	server = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (server < 0 || bind(server, (struct sockaddr *)&at, sizeof at) || listen(server, 512)) { perror("listen"); return 1; }
	pthread_create(&t, NULL, upstream, NULL);
	double begun = now();
	for (long n = 0;; n++) {
		int slot = n % live;
		if (!said && (n >= live || now() - begun > 8)) { printf("ready\n"); fflush(stdout); said = 1; }
		while (when[slot] && now() - when[slot] < 61) usleep(2000);
		if (n % 25 == 24) usleep(said ? 10000 : 300);
		int c = socket(AF_INET, SOCK_STREAM, 0);
		from.sin_port = htons(32768 + slot);
		if (c < 0 || bind(c, (struct sockaddr *)&from, sizeof from) || connect(c, (struct sockaddr *)&at, sizeof at)) usleep(1000);
		else when[slot] = now();
		if (c >= 0) close(c);
	}
}
