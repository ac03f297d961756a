// socket-queue BACKLOG WORKERS CLIENTS: an application server behind a Unix socket with a short queue: WORKERS workers take 0.4
// s for a request, and CLIENTS clients of the web server get EAGAIN from connect(2), since BACKLOG of them wait already.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static struct sockaddr_un a = {AF_UNIX, "/tmp/app.sock"};
static int l;
static unsigned long refused;
static void *worker(void *x) {
	for (;;) {
		int s = accept(l, NULL, NULL);
		if (s < 0) continue;
		usleep(400000);
		if (write(s, "200\n", 4) < 0) perror("write");
		close(s);
	}
	return x;
}
static void *client(void *x) {
	for (;;) {
		char b[8];
		int s = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
		if (s < 0) { perror("socket"); exit(1); }
		if (connect(s, (void *)&a, sizeof a)) { __atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED); close(s); usleep(50000); continue; }
		while (read(s, b, sizeof b) < 0 && errno == EAGAIN) usleep(20000);
		close(s);
	}
	return x;
}
int main(int argc, char **argv) {
	pthread_t t;
	if (argc < 4) return 2;
	signal(SIGPIPE, SIG_IGN);
	unlink(a.sun_path);
	l = socket(AF_UNIX, SOCK_STREAM, 0);
	if (l < 0 || bind(l, (void *)&a, sizeof a) || listen(l, atoi(argv[1]))) { perror("listen"); return 1; }
	for (int i = 0; i < atoi(argv[2]); i++) pthread_create(&t, NULL, worker, NULL);
	for (int i = 0; i < atoi(argv[3]); i++) pthread_create(&t, NULL, client, NULL);
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		sleep(5);
		fprintf(stderr, "connect() to unix:%s failed (11: Resource temporarily unavailable), %lu times\n", a.sun_path, __atomic_load_n(&refused, __ATOMIC_RELAXED));
	}
}
