// discovery PARTICIPANTS SENDERS: the nodes of a middleware announce themselves by multicast on the loopback interface,
// without a pause: the kernel copies each datagram to the socket of each participant.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct sockaddr_in group;
static void *announce(void *p) {
	char b[512] = "RTPS";
	struct in_addr lo = {htonl(INADDR_LOOPBACK)};
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	if (s < 0 || setsockopt(s, IPPROTO_IP, IP_MULTICAST_IF, &lo, sizeof lo)) { perror("IP_MULTICAST_IF"); exit(1); }
	for (int n = 0;; n++) {
		if (sendto(s, b, sizeof b, 0, (struct sockaddr *)&group, sizeof group) < 0) usleep(1000);
		if (n % 20 == 19) usleep(1000);
	}
	return p;
}
static void *listen_to(void *p) {
	char b[512];
	int s = (int)(long)p;
	for (;;) { if (recv(s, b, sizeof b, 0) < 0) usleep(1000); usleep(300); }
	return NULL;
}
int main(int argc, char **argv) {
	pthread_t t;
	int one = 1, small = 32768;
	if (argc < 3) return 2;
	group.sin_family = AF_INET; group.sin_port = htons(7400); inet_aton("239.255.0.1", &group.sin_addr);
	for (int i = 0; i < atoi(argv[1]) && i < 200; i++) {
		struct ip_mreq m = {group.sin_addr, {htonl(INADDR_LOOPBACK)}};
		int s = socket(AF_INET, SOCK_DGRAM, 0);
		setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		setsockopt(s, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
		if (s < 0 || bind(s, (struct sockaddr *)&group, sizeof group) || setsockopt(s, IPPROTO_IP, IP_ADD_MEMBERSHIP, &m, sizeof m)) { perror("join"); return 1; }
		pthread_create(&t, NULL, listen_to, (void *)(long)s);
	}
	for (int i = 0; i < atoi(argv[2]) && i < 8; i++) pthread_create(&t, NULL, announce, NULL);
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
