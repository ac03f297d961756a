// probes START PER_S: a load balancer checks its backends with a new connection each time; START checks at once.
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static int server;
static void *backend(void *p) {
	char b[8];
	for (;;) { int c = accept(server, NULL, NULL); if (c < 0) continue; if (read(c, b, sizeof b) < 0) usleep(10); close(c); }
	return p;
}
int main(int argc, char **argv) {
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(9000)};
	pthread_t t;
	int one = 1;
	if (argc < 3) return 2;
	server = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (server < 0 || bind(server, (struct sockaddr *)&at, sizeof at) || listen(server, 256)) { perror("listen"); return 1; }
	pthread_create(&t, NULL, backend, NULL);
	for (long n = 0;; n++) {
		int c = socket(AF_INET, SOCK_STREAM, 0);
		if (c >= 0 && connect(c, (struct sockaddr *)&at, sizeof at)) usleep(1000);
		if (c >= 0) close(c);
		if (n == atol(argv[1])) { printf("ready\n"); fflush(stdout); }
		if (n >= atol(argv[1])) usleep(1000000 / atol(argv[2]));
		else if (n % 16 == 15) usleep(1000);
	}
}
