// Clients connect and never send: with TCP_DEFER_ACCEPT they stay half open and fill the SYN queue, and ordinary clients meet SYN cookies and retries.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
static void fail(const char *what) { perror(what); exit(1); }
static void ready(void) { printf("ready\n"); fflush(stdout); }
static struct sockaddr_in a;
static void *ordinary(void *p) {
	for (;;) {
		int s = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(s, (struct sockaddr *)&a, sizeof a) == 0) { struct timeval t = {1, 0}; char c = 'x'; setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t); send(s, &c, 1, MSG_NOSIGNAL); if (recv(s, &c, 1, 0) < 0) c = 0; }
		close(s); usleep(50000);
	}
	return p;
}
static void *server(void *p) {
	int l = *(int *)p;
	for (;;) { int c = accept(l, NULL, NULL); char b; if (c < 0) continue; if (recv(c, &b, 1, MSG_DONTWAIT) > 0) send(c, &b, 1, MSG_NOSIGNAL); close(c); }
	return NULL;
}
int main(void) {
	static int idle[700], l; int sec = 30; socklen_t n = sizeof a; pthread_t t;
	a.sin_family = AF_INET; a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	l = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(l, IPPROTO_TCP, TCP_DEFER_ACCEPT, &sec, sizeof sec);
	if (bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 64) || getsockname(l, (struct sockaddr *)&a, &n)) fail("listen");
	pthread_create(&t, NULL, server, &l);
	pthread_create(&t, NULL, ordinary, NULL);
	for (unsigned long i = 0;; i++) {
		int k = i % 700;
		if (idle[k] > 0) close(idle[k]);
		idle[k] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		connect(idle[k], (struct sockaddr *)&a, sizeof a);
		if (i == 300) ready();
		usleep(5000);
	}
}
