/* A stream relay: THREADS threads send batches of small packets over the network stack and read them again. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BATCH 64

static void *relay(void *arg) {
	int in = socket(AF_INET, SOCK_DGRAM, 0), out = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof a;
	if (bind(in, (void *)&a, sizeof a) || getsockname(in, (void *)&a, &len) || connect(out, (void *)&a, sizeof a)) { perror("socket"); exit(1); }
	static char data[200];
	char buf[BATCH][256];
	struct iovec si[BATCH], ri[BATCH];
	struct mmsghdr sm[BATCH], rm[BATCH];
	memset(sm, 0, sizeof sm); memset(rm, 0, sizeof rm);
	for (int i = 0; i < BATCH; i++) {
		si[i] = (struct iovec){ data, 120 }; ri[i] = (struct iovec){ buf[i], sizeof buf[i] };
		sm[i].msg_hdr.msg_iov = &si[i]; sm[i].msg_hdr.msg_iovlen = 1;
		rm[i].msg_hdr.msg_iov = &ri[i]; rm[i].msg_hdr.msg_iovlen = 1;
	}
	(void)arg;
	for (;;) {
		sendmmsg(out, sm, BATCH, 0);
		recvmmsg(in, rm, BATCH, MSG_DONTWAIT, 0);
	}
	return 0;
}

int main(int argc, char **argv) {
	long threads = argc > 1 ? atol(argv[1]) : 3;
	pthread_t t;
	for (long i = 0; i < threads; i++) pthread_create(&t, 0, relay, 0);
	sleep(1);
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
