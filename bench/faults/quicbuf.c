// quicbuf: a QUIC server could not enlarge its receive buffer, and most of each burst of 300 datagrams is dropped.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

static struct sockaddr_in to = {.sin_family = AF_INET};
static void *client(void *p) {
	char b[1200] = {0};
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	for (;; usleep(40000)) for (int i = 0; i < 300; i++) sendto(s, b, sizeof b, 0, (struct sockaddr *)&to, sizeof to);
	return p;
}
int main(void) {
	socklen_t n = sizeof to;
	int s = socket(AF_INET, SOCK_DGRAM, 0), size = 24576;
	char b[2048];
	pthread_t t;
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	setsockopt(s, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
	if (bind(s, (struct sockaddr *)&to, sizeof to) || getsockname(s, (struct sockaddr *)&to, &n)) { perror("bind"); return 1; }
	pthread_create(&t, NULL, client, NULL);
	printf("ready\n");
	fflush(stdout);
	for (;;) { if (recv(s, b, sizeof b, 0) < 0) perror("recv"); usleep(200); }
}
