// set12-ports: a client without keep-alive opens a connection for each request and closes it first. All ports of
// ip_local_port_range are in TIME_WAIT for a minute, and connect(2) fails with EADDRNOTAVAIL. It needs NET_ADMIN only to give
// lo an address that is not 127.0.0.1, as for loopback the kernel reuses ports early (tcp_tw_reuse).
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
int main(void) {
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(9000)};
	inet_aton("10.99.0.1", &a.sin_addr);
	int s = socket(AF_INET, SOCK_STREAM, 0), one = 1, ready = 0;
	struct ifreq r = {0};
	strcpy(r.ifr_name, "lo:1");
	memcpy(&r.ifr_addr, &a, sizeof a);
	((struct sockaddr_in *)&r.ifr_addr)->sin_port = 0;
	if (ioctl(s, SIOCSIFADDR, &r)) perror("SIOCSIFADDR");
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(s, (void *)&a, sizeof a) || listen(s, 128)) { perror("listen"); return 1; }
	if (fork() == 0) for (;;) { // the server closes when its client has
		char b[64];
		int x = accept(s, NULL, NULL);
		if (x < 0) continue;
		while (read(x, b, sizeof b) > 0) if (send(x, b, 1, MSG_NOSIGNAL) < 0) break;
		close(x);
	}
	close(s);
	int low = 32768, high = 60999;
	FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "r");
	if (f) { if (fscanf(f, "%d %d", &low, &high) != 2) low = 32768, high = 60999; fclose(f); }
	for (unsigned long n = 0, failed = 0;;) {
		// It takes the ports in order itself, as some proxies do: with the kernel's own choice the last ones take minutes.
		struct sockaddr_in from = a;
		char b = 'x';
		int c = socket(AF_INET, SOCK_STREAM, 0);
		from.sin_port = htons(low + n % (high - low + 1));
		if (bind(c, (void *)&from, sizeof from) == 0) {
			if (connect(c, (void *)&a, sizeof a) == 0 && (write(c, &b, 1) < 0 || read(c, &b, 1) < 0)) perror("request");
			n++;
		} else if (n <= (unsigned)(high - low)) n++; // in use by someone else
		else {
			close(c);
			c = socket(AF_INET, SOCK_STREAM, 0);
			if (connect(c, (void *)&a, sizeof a) && errno == EADDRNOTAVAIL && failed++ % 500 == 0) { printf("connect: Cannot assign requested address after %lu\n", n); fflush(stdout); }
			if (!ready++) { printf("ready\n"); fflush(stdout); }
			usleep(10000);
		}
		close(c);
	}
}
