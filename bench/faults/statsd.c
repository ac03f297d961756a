// statsd PER_SECOND: a collector of metrics over UDP which takes 50 datagrams a second, while its clients send PER_SECOND: its
// receive buffer is always full and the kernel drops the others (RcvbufErrors).
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct sockaddr_in a = {.sin_family = AF_INET};
static void *clients(void *x) {
	char m[200];
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	memset(m, 'm', sizeof m);
	for (;;) { for (long i = 0; i < (long)x / 50; i++) sendto(s, m, sizeof m, 0, (void *)&a, sizeof a); usleep(20000); }
	return NULL;
}
int main(int argc, char **argv) {
	socklen_t n = sizeof a;
	char b[512];
	pthread_t t;
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (s < 0 || bind(s, (void *)&a, n) || getsockname(s, (void *)&a, &n)) { perror("bind"); return 1; }
	pthread_create(&t, NULL, clients, (void *)(argc > 1 ? atol(argv[1]) : 4000));
	sleep(1);
	printf("ready\n");
	fflush(stdout);
	for (;;) { if (recv(s, b, sizeof b, 0) < 0) perror("recv"); usleep(20000); }
}
