// slowaccept CLIENTS BACKLOG: a server takes one connection every 60 ms from a short queue; CLIENTS clients connect over
// loopback, wait for an answer and connect again.
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static struct sockaddr_in at;
static void *ask(void *p) {
	char b[16];
	for (;;) {
		int c = socket(AF_INET, SOCK_STREAM, 0);
		if (c >= 0 && connect(c, (struct sockaddr *)&at, sizeof at) == 0 && write(c, "GET", 3) == 3 && read(c, b, sizeof b) < 0) usleep(1000);
		if (c >= 0) close(c);
		usleep(2000);
	}
	return p;
}
int main(int argc, char **argv) {
	pthread_t t;
	int one = 1;
	if (argc < 3) return 2;
	int s = socket(AF_INET, SOCK_STREAM, 0);
	at.sin_family = AF_INET; at.sin_addr.s_addr = htonl(INADDR_LOOPBACK); at.sin_port = htons(8000);
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (s < 0 || bind(s, (struct sockaddr *)&at, sizeof at) || listen(s, atoi(argv[2]))) { perror("listen"); return 1; }
	for (int i = 0; i < atoi(argv[1]) && i < 200; i++) pthread_create(&t, NULL, ask, NULL);
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		char b[16];
		int c = accept(s, NULL, NULL);
		if (c < 0) continue;
		usleep(60000);
		if (read(c, b, sizeof b) > 0 && write(c, "200", 3) < 0) usleep(1000);
		close(c);
	}
}
