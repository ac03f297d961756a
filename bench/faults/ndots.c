// ndots: resolv.conf(5) says "options ndots:5" and lists four search domains. For each name a client asks a name server on
// loopback ten times, IPv4 and IPv6 for each domain, on a new socket, and nine answers are NXDOMAIN.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static struct sockaddr_in at;
static void *server(void *p) {
	int s = (int)(long)p;
	unsigned char q[512];
	struct sockaddr_in from;
	prctl(PR_SET_NAME, "coredns");
	for (;;) {
		socklen_t l = sizeof from;
		ssize_t n = recvfrom(s, q, sizeof q, 0, (struct sockaddr *)&from, &l);
		if (n < 12) continue;
		int cluster = memmem(q, n, "cluster", 7) || memmem(q, n, "internal", 8);
		q[2] |= 0x80;
		q[3] = cluster ? 3 : 0; // NXDOMAIN
		sendto(s, q, n, 0, (struct sockaddr *)&from, l);
	}
	return NULL;
}
static size_t encode(unsigned char *b, const char *name, int type) {
	unsigned char *o = b + 12;
	memset(b, 0, 12);
	b[2] = 1; b[5] = 1;
	while (*name) {
		size_t l = strcspn(name, ".");
		*o++ = l;
		memcpy(o, name, l);
		o += l;
		name += l + (name[l] == '.');
	}
	*o++ = 0; *o++ = 0; *o++ = type; *o++ = 0; *o++ = 1;
	return o - b;
}
static void *client(void *p) {
	static const char *search[] = {".team.svc.cluster.local", ".svc.cluster.local", ".cluster.local", ".eu-west-1.compute.internal", ""};
	unsigned char b[512];
	char name[256];
	for (unsigned long n = 0;; n++, usleep(100)) // without a pause the kernel frees sockets later than they are made
		for (int d = 0; d < 5; d++) for (int six = 0; six < 2; six++) {
			int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
			struct timeval t = {1, 0};
			snprintf(name, sizeof name, "api-%lu.example.com%s", n % 500, search[d]);
			size_t l = encode(b, name, six ? 28 : 1);
			setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
			if (connect(s, (struct sockaddr *)&at, sizeof at) == 0 && send(s, b, l, 0) > 0 && recv(s, b, sizeof b, 0) < 0) usleep(1000);
			close(s);
		}
	return p;
}
int main(void) {
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	socklen_t n = sizeof at;
	pthread_t t;
	prctl(PR_SET_NAME, "node-app");
	at.sin_family = AF_INET;
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(s, (struct sockaddr *)&at, sizeof at) || getsockname(s, (struct sockaddr *)&at, &n)) { perror("bind"); return 1; }
	for (int i = 0; i < 2; i++) pthread_create(&t, NULL, server, (void *)(long)s);
	for (int i = 0; i < 6; i++) pthread_create(&t, NULL, client, NULL);
	printf("ready\n");
	fflush(stdout);
	pause();
	return 0;
}
