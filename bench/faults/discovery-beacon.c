// discovery-beacon LISTENERS SENDERS: services which find each other by broadcast: SENDERS threads send to
// 127.255.255.255, and the kernel copies each datagram to each of LISTENERS sockets on the port, in a softirq.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct sockaddr_in to = {.sin_family = AF_INET};
static void *send_all(void *x) {
	int s = socket(AF_INET, SOCK_DGRAM, 0), on = 1;
	if (s < 0 || setsockopt(s, SOL_SOCKET, SO_BROADCAST, &on, sizeof on)) { perror("socket"); exit(1); }
	for (;;) if (sendto(s, "here I am", 9, 0, (void *)&to, sizeof to) < 0) { perror("sendto"); exit(1); }
	return x;
}
int main(int argc, char **argv) {
	int on = 1, small = 4096, n = argc > 1 ? atoi(argv[1]) : 300, s[512];
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(5353)};
	if (n > 512) return 2;
	to.sin_port = a.sin_port;
	to.sin_addr.s_addr = inet_addr("127.255.255.255");
	for (int i = 0; i < n; i++) {
		s[i] = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
		setsockopt(s[i], SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
		setsockopt(s[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
		if (s[i] < 0 || bind(s[i], (void *)&a, sizeof a)) { perror("bind"); return 1; }
	}
	for (int i = 0; i < (argc > 2 ? atoi(argv[2]) : 3); i++) { pthread_t t; pthread_create(&t, NULL, send_all, NULL); }
	usleep(100000);
	printf("ready\n");
	fflush(stdout);
	for (char b[64];; usleep(20000)) for (int i = 0; i < n; i++) for (int k = 0; k < 8 && recv(s[i], b, sizeof b, 0) > 0; k++);
}
