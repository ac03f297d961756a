/* Servers on the loopback: shop BACKLOG WORK_MS CLIENTS | stats PACKETS_PER_S */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static struct sockaddr_in at = {.sin_family = AF_INET};
static int bound(int type) {
	int s = socket(AF_INET, type, 0); socklen_t n = sizeof at;
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (s < 0 || bind(s, (void *)&at, sizeof at) || getsockname(s, (void *)&at, &n)) exit(1);
	return s;
}
static void *client(void *p) {
	struct timeval tv = {3, 0}; char b[256] = "GET /cart HTTP/1.0\r\n\r\n";
	for (;;) {
		int k = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(k, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv); setsockopt(k, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
		if (!connect(k, (void *)&at, sizeof at) && send(k, b, 24, MSG_NOSIGNAL) > 0 && recv(k, b, sizeof b, 0) >= 0) {}
		close(k); usleep(20000);
	}
	return p;
}
static double rate;
static void *sender(void *p) {
	int k = socket(AF_INET, SOCK_DGRAM, 0); char b[200]; memset(b, 'm', sizeof b); double t = now(); long n = 0;
	for (;;) { while (n < (now() - t) * rate) { sendto(k, b, sizeof b, 0, (void *)&at, sizeof at); n++; } usleep(5000); }
	return p;
}
int main(int c, char **v) {
	pthread_t t; char b[512];
	if (c > 4 && !strcmp(v[1], "shop")) {
		int s = bound(SOCK_STREAM), work = atoi(v[3]), a; listen(s, atoi(v[2]));
		for (long i = 0; i < atoi(v[4]); i++) pthread_create(&t, 0, client, (void *)i);
		double begin = now(); int told = 0;
		for (;;) { /* one worker, which waits for its database in each request */
			a = accept(s, 0, 0); if (a < 0) continue;
			if (read(a, b, sizeof b) > 0) { usleep(work * 1000); if (send(a, "200\n", 4, MSG_NOSIGNAL) < 0) {} }
			close(a);
			if (!told && now() - begin > 2) { told = 1; puts("ready"); fflush(stdout); }
		}
	}
	int s = bound(SOCK_DGRAM), size = 65536; rate = c > 2 ? atof(v[2]) : 8000;
	setsockopt(s, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
	pthread_create(&t, 0, sender, 0);
	double flush = now() + 1; volatile long sum = 0; int told = 0;
	for (;;) { /* every second it stops for its flush to the store */
		ssize_t n = recv(s, b, sizeof b, 0); for (ssize_t i = 0; i < n; i++) sum += b[i];
		if (now() > flush) { usleep(600000); flush = now() + 0.4; if (!told) { told = 1; puts("ready"); fflush(stdout); } }
	}
}
