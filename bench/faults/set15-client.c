// client PERCENT: opens a new connection to its database for each query and closes it first, so that each port waits for
// a minute; so many queries that PERCENT of the ports wait (ports in turn, as a pool chooses them). The database listens on the container's own address.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
static int s;
static double closed[65536];
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void *database(void *p) {
	char c;
	for (;;) { int fd = accept(s, NULL, NULL); if (fd < 0) continue; while (read(fd, &c, 1) == 1) if (write(fd, &c, 1) < 0) break; close(fd); }
	return p;
}
int main(int argc, char **argv) {
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof a; pthread_t t; char c;
	struct ifaddrs *all, *i;
	int low = 32768, high = 60999;
	FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "r");
	if (f && fscanf(f, "%d %d", &low, &high) != 2) return 1;
	if (getifaddrs(&all) == 0)
		for (i = all; i; i = i->ifa_next)
			if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && ntohl(((struct sockaddr_in *)i->ifa_addr)->sin_addr.s_addr) >> 24 != 127)
				a.sin_addr = ((struct sockaddr_in *)i->ifa_addr)->sin_addr;
	s = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(s, (void *)&a, sizeof a) || listen(s, 128) || getsockname(s, (void *)&a, &len)) { perror("client"); return 1; }
	pthread_create(&t, NULL, database, NULL);
	long want = (high - low + 1) / 100.0 * (argc > 1 ? atof(argv[1]) : 90);
	if (want > 60000) want = 60000;
	long head = 0, tail = 0, port = low;
	int one = 1;
	for (int said = 0;;) {
		while (tail < head && now() - closed[tail % 65536] > 60) tail++;
		if (head - tail >= want) {
			if (!said) { printf("ready\n"); fflush(stdout); said = 1; }
			usleep(20000);
			if (head - tail >= want + 200) continue; // some queries go on
		}
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		if (head - tail < want) { // the bulk of the queries: ports in turn
			struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr = a.sin_addr, .sin_port = htons(port)};
			setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
			if (++port > high) port = low;
			if (bind(fd, (void *)&own, sizeof own)) { close(fd); usleep(100); continue; }
		} else usleep(100000);
		if (connect(fd, (void *)&a, sizeof a)) { perror("connect"); usleep(200000); }
		else { if (write(fd, "q", 1) != 1 || read(fd, &c, 1) != 1) perror("query"); closed[head++ % 65536] = now(); }
		close(fd);
	}
}
