// fpmsock CLIENTS WORKERS: an application server listens at a Unix socket with a short queue, and each of its WORKERS
// needs 120 ms for a request. CLIENTS clients get EAGAIN from connect(2) and try again after 15 ms.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static struct sockaddr_un at = {.sun_family = AF_UNIX, .sun_path = "/tmp/php-fpm.sock"};
static int server;
static unsigned long refused;
static void *work(void *p) {
	char b[64];
	for (;;) {
		int c = accept(server, NULL, NULL);
		if (c < 0) { usleep(1000); continue; }
		if (read(c, b, sizeof b) > 0) { usleep(120000); if (write(c, "200", 3) < 0) perror("write"); }
		close(c);
	}
	return p;
}
static void *ask(void *p) {
	char b[64];
	for (;;) {
		int c = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
		if (c < 0) { usleep(15000); continue; }
		if (connect(c, (struct sockaddr *)&at, sizeof at)) { __atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED); close(c); usleep(15000); continue; }
		if (write(c, "GET", 3) == 3) for (int i = 0; i < 400 && read(c, b, sizeof b) < 0; i++) usleep(5000);
		close(c);
	}
	return p;
}
int main(int argc, char **argv) {
	pthread_t t;
	if (argc < 3) return 2;
	unlink(at.sun_path);
	server = socket(AF_UNIX, SOCK_STREAM, 0);
	if (server < 0 || bind(server, (struct sockaddr *)&at, sizeof at) || listen(server, 8)) { perror(at.sun_path); return 1; }
	for (int i = 0; i < atoi(argv[2]); i++) pthread_create(&t, NULL, work, NULL);
	for (int i = 0; i < atoi(argv[1]) && i < 200; i++) pthread_create(&t, NULL, ask, NULL);
	printf("ready\n");
	fflush(stdout);
	for (;;) { sleep(1); fprintf(stderr, "connect() to unix:%s failed (11: Resource temporarily unavailable) %lu times\n", at.sun_path, refused); sleep(9); }
}
