// backpressure: a consumer takes 40 messages a second, and its producers over TCP wait with full buffers, as they should.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

static struct sockaddr_in at;
static void *produce(void *p) {
	static char m[4096];
	int s = socket(AF_INET, SOCK_STREAM, 0), size = 32768;
	setsockopt(s, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
	if (connect(s, (struct sockaddr *)&at, sizeof at)) exit(1);
	while (send(s, m, sizeof m, MSG_NOSIGNAL) > 0);
	return p;
}
int main(void) {
	int l = socket(AF_INET, SOCK_STREAM, 0), s[4], size = 32768;
	socklen_t n = sizeof at;
	char b[4096];
	pthread_t t;
	prctl(PR_SET_NAME, "consumer");
	at.sin_family = AF_INET;
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	setsockopt(l, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
	if (bind(l, (struct sockaddr *)&at, sizeof at) || listen(l, 16) || getsockname(l, (struct sockaddr *)&at, &n)) { perror("listen"); return 1; }
	for (int i = 0; i < 4; i++) pthread_create(&t, NULL, produce, NULL);
	for (int i = 0; i < 4; i++) s[i] = accept(l, NULL, NULL);
	printf("ready\n");
	fflush(stdout);
	for (;;) { for (int i = 0; i < 4; i++) if (recv(s[i], b, sizeof b, MSG_WAITALL) <= 0) return 1; usleep(100000); }
}
