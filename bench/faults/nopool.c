// nopool: workers of an application open a new connection to the local socket of their cache for each query.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int l;
static struct sockaddr_un a = {.sun_family = AF_UNIX, .sun_path = "/tmp/cache.sock"};
static void *serve(void *p) {
	char b[64];
	for (;;) {
		int c = accept(l, NULL, NULL);
		if (c < 0) continue;
		if (read(c, b, sizeof b) > 0 && write(c, b, sizeof b) < 0) {}
		close(c);
	}
	return p;
}
static void *ask(void *p) {
	char b[64] = "GET key";
	for (;;) {
		int s = socket(AF_UNIX, SOCK_STREAM, 0);
		if (s < 0) continue;
		if (connect(s, (struct sockaddr *)&a, sizeof a) == 0 && write(s, b, sizeof b) > 0 && read(s, b, sizeof b) < 0) {}
		close(s);
	}
	return p;
}
int main(void) {
	pthread_t t;
	unlink(a.sun_path);
	l = socket(AF_UNIX, SOCK_STREAM, 0);
	if (bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 512)) { perror("bind"); return 1; }
	for (int i = 0; i < 3; i++) pthread_create(&t, NULL, serve, NULL);
	for (int i = 0; i < 6; i++) pthread_create(&t, NULL, ask, NULL);
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
