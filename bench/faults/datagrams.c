// datagrams BURST EVERY_MS WAIT_MS RCVBUF: agents send BURST metrics in datagrams each EVERY_MS over loopback; the collector, which is busy for
// WAIT_MS after it has woken, reads them then. RCVBUF bytes for its socket, 0 for the default of the host. It reopens the socket every two seconds.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
static long burst, every, wait_ms;
static int rcvbuf;
static const struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = 0xbd1f /* 8125 */};
static void *agents(void *p) {
	struct sockaddr_in to = a;
	char m[120] = "shop.requests:1|c";
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	for (;;) {
		for (long i = 0; i < burst; i++) sendto(s, m, sizeof m, 0, (const struct sockaddr *)&to, sizeof to);
		usleep(every * 1000);
	}
	return p;
}
int main(int argc, char **argv) {
	char b[2048];
	pthread_t t;
	burst = argc > 1 ? atol(argv[1]) : 150; every = argc > 2 ? atol(argv[2]) : 200;
	wait_ms = argc > 3 ? atol(argv[3]) : 5; rcvbuf = argc > 4 ? atoi(argv[4]) : 0;
	for (int said = 0;;) {
		int s = socket(AF_INET, SOCK_DGRAM, 0), on = 1;
		struct timeval v = {1, 0};
		setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
		setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &v, sizeof v);
		if (rcvbuf) setsockopt(s, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof rcvbuf);
		if (bind(s, (const struct sockaddr *)&a, sizeof a)) { perror("bind"); return 1; }
		if (!said) { said = 1; pthread_create(&t, NULL, agents, NULL); printf("ready\n"); fflush(stdout); }
		for (time_t end = time(NULL) + 2; time(NULL) < end;) {
			if (recv(s, b, sizeof b, 0) < 0) continue;
			usleep(wait_ms * 1000);
			while (recv(s, b, sizeof b, MSG_DONTWAIT) >= 0);
		}
		while (recv(s, b, sizeof b, MSG_DONTWAIT) >= 0);
		close(s);
	}
}
