// A telemetry stream over TCP with a tiny MSS and TCP_NODELAY: each record of 40 bytes is a packet of its own.
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
static void tune(int s) { int mss = 88, one = 1; setsockopt(s, IPPROTO_TCP, TCP_MAXSEG, &mss, sizeof mss); setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); }
static void *sink(void *p) { int l = *(int *)p; static __thread char b[65536]; int c = accept(l, NULL, NULL); while (recv(c, b, sizeof b, 0) > 0); return NULL; }
static struct sockaddr_in a;
static void *source(void *p) {
	char r[40] = {0};
	int s = socket(AF_INET, SOCK_STREAM, 0);
	tune(s);
	if (connect(s, (struct sockaddr *)&a, sizeof a)) fail("connect");
	for (;;) if (send(s, r, sizeof r, MSG_EOR | MSG_NOSIGNAL) < 0) fail("send");
	return p;
}
int main(void) {
	static int l; socklen_t n = sizeof a; pthread_t t;
	a.sin_family = AF_INET; a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	l = socket(AF_INET, SOCK_STREAM, 0); tune(l);
	if (bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 16) || getsockname(l, (struct sockaddr *)&a, &n)) fail("listen");
	for (int i = 0; i < 3; i++) { pthread_create(&t, NULL, sink, &l); pthread_create(&t, NULL, source, NULL); }
	sleep(1);
	ready();
	pause();
	return 0;
}
