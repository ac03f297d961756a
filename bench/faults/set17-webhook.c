/* Calls a service of its own address with a new connection for each call, from each local port in turn;
 * the client ends each of them, and so its port remains in TIME-WAIT for a minute. */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
static struct sockaddr_in a;
static int s;
static int call(int port) {
	struct sockaddr_in l = {.sin_family = AF_INET, .sin_port = htons(port)};
	int f = socket(AF_INET, SOCK_STREAM, 0), one = 1, k, e;
	char b[64];
	if (f < 0) return -1;
	if (port) {
		setsockopt(f, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		l.sin_addr = a.sin_addr;
		if (bind(f, (void *)&l, sizeof l)) { close(f); return -1; }
	}
	if (connect(f, (void *)&a, sizeof a)) { e = errno; close(f); errno = e; return -1; }
	k = accept(s, 0, 0);
	if (write(f, "POST", 4) < 0 || read(k, b, sizeof b) < 0) perror("call");
	close(f);
	if (read(k, b, sizeof b) < 0) perror("read");
	close(k);
	return 0;
}
int main(void) {
	struct ifaddrs *l, *i;
	int one = 1, lo = 32768, hi = 60999;
	FILE *r = fopen("/proc/sys/net/ipv4/ip_local_port_range", "r");
	if (r) { if (fscanf(r, "%d %d", &lo, &hi) != 2) { lo = 32768; hi = 60999; } fclose(r); }
	if (hi - lo > 30000) hi = lo + 30000;
	a.sin_family = AF_INET; a.sin_port = htons(8443); a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (!getifaddrs(&l))
		for (i = l; i; i = i->ifa_next)
			if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && strcmp(i->ifa_name, "lo"))
				a.sin_addr = ((struct sockaddr_in *)i->ifa_addr)->sin_addr;
	s = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(s, (void *)&a, sizeof a) || listen(s, 512)) { perror("listen"); return 1; }
	for (int p = lo; p <= hi; p++) call(p);
	puts("ready"); fflush(stdout);
	for (int p = lo, n = 0;; n++) {
		for (int k = 0; k < 50; k++) {
			call(p);
			if (++p > hi) p = lo;
		}
		if (n % 50 == 0 && call(0)) fprintf(stderr, "connect: %s\n", strerror(errno));
		usleep(10000);
	}
}
