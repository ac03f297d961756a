// hostdnsloop QUERIES: the resolver of the host forwards to a cache on 127.0.0.1 whose upstream is that resolver: QUERIES circle between the two
// sockets for ever, as fast as they can.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
static int s[2];
static struct sockaddr_in at[2];
static void *forward(void *p) {
	long i = (long)p;
	char b[512];
	for (;;) {
		ssize_t n = recv(s[i], b, sizeof b, 0);
		unsigned h = 5381;
		for (ssize_t k = 0; k < n; k++) h = h * 33 + b[k]; // parse the question
		b[0] = h;
		if (n > 0) sendto(s[i], b, n, 0, (struct sockaddr *)&at[1 - i], sizeof at[0]);
	}
	return NULL;
}
int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 60;
	char q[64] = {7};
	for (int i = 0; i < 2; i++) {
		socklen_t len = sizeof at[i];
		at[i].sin_family = AF_INET;
		at[i].sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		s[i] = socket(AF_INET, SOCK_DGRAM, 0);
		if (bind(s[i], (struct sockaddr *)&at[i], sizeof at[i]) || getsockname(s[i], (struct sockaddr *)&at[i], &len)) { perror("bind"); return 1; }
	}
	for (int i = 0; i < n; i++) sendto(s[0], q, sizeof q, 0, (struct sockaddr *)&at[1], sizeof at[1]);
	for (long i = 0; i < 4; i++) { pthread_t t; pthread_create(&t, NULL, forward, (void *)(i % 2)); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
