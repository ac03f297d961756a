/* A fetcher: a new connection for every request to the same cache, closed at once: its ports stay in TIME_WAIT. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <net/if.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int listener;

static void *serve(void *a) {
	char b[64];
	(void)a;
	for (;;) {
		int s = accept(listener, 0, 0);
		if (s < 0) { usleep(1000); continue; }
		while (recv(s, b, sizeof b, 0) > 0);
		close(s);
	}
	return 0;
}

static struct sockaddr_in a;
static long n;

/* One request over a new connection; its port is one of LOW to HIGH (any when LOW is 0). */
static int request(unsigned low, unsigned high) {
	int c = socket(AF_INET, SOCK_STREAM, 0), ok = 0;
	if (c < 0) return 0;
	if (low) { unsigned range = low | high << 16; setsockopt(c, IPPROTO_IP, 51 /* IP_LOCAL_PORT_RANGE */, &range, sizeof range); }
	if (connect(c, (void *)&a, sizeof a) == 0) {
		char b;
		shutdown(c, SHUT_WR);
		while (recv(c, &b, 1, 0) > 0);
		ok = 1; n++;
	}
	int e = errno;
	close(c);
	errno = e;
	return ok;
}

int main(int argc, char **argv) {
	unsigned low = 32768, high = 60999, spare = argc > 1 ? atoi(argv[1]) : 100;
	FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "r");
	if (f) { if (fscanf(f, "%u %u", &low, &high) != 2) return 1; fclose(f); }
	if (high - low > 29000) low = high - 29000;
	a.sin_family = AF_INET; a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	struct ifaddrs *list = 0;
	if (getifaddrs(&list) == 0)
		for (struct ifaddrs *i = list; i; i = i->ifa_next)
			if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && !(i->ifa_flags & IFF_LOOPBACK))
				a.sin_addr = ((struct sockaddr_in *)i->ifa_addr)->sin_addr;
	listener = socket(AF_INET, SOCK_STREAM, 0);
	a.sin_port = htons(6379);
	if (bind(listener, (void *)&a, sizeof a) || listen(listener, 1024)) { perror("listen"); return 1; }
	pthread_t t;
	pthread_create(&t, 0, serve, 0);
	for (long pass = 0;; pass++) {
		for (unsigned p = low + spare; p + 49 <= high; p += 50)
			for (int i = 0; i < 50 && request(p, p + 49); i++);
		if (pass == 0) { puts("ready"); fflush(stdout); }
		for (int i = 0; i < 8; i++) {
			if (!request(0, 0) && i == 0) { printf("cannot connect to the cache: %s\n", strerror(errno)); fflush(stdout); }
			usleep(500000);
		}
	}
}
