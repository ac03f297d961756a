// ping-flood THREADS: a probe of a network path with a pause of 0: echo requests over loopback without end. Both the request
// and its answer are processed in softirqs.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/ip_icmp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void *flood(void *x) {
	struct { struct icmphdr h; char data[56]; } p;
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	char in[256];
	int s = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
	if (s < 0) s = socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP);
	if (s < 0) { perror("socket"); exit(1); }
	memset(&p, 7, sizeof p);
	for (unsigned short n = 0;; n++) {
		unsigned sum = 0;
		p.h = (struct icmphdr){.type = ICMP_ECHO, .un.echo.sequence = n, .un.echo.id = (unsigned short)(long)x};
		for (unsigned i = 0; i < sizeof p / 2; i++) { unsigned short w; memcpy(&w, (char *)&p + 2 * i, 2); sum += w; }
		sum = (sum >> 16) + (sum & 0xffff);
		p.h.checksum = (unsigned short)~(sum + (sum >> 16));
		sendto(s, &p, sizeof p, 0, (void *)&to, sizeof to);
		while (recv(s, in, sizeof in, MSG_DONTWAIT) > 0);
	}
	return NULL;
}
int main(int argc, char **argv) {
	for (long i = 0; i < (argc > 1 ? atoi(argv[1]) : 3); i++) { pthread_t t; pthread_create(&t, NULL, flood, (void *)(i + 100)); }
	usleep(100000);
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
