// set13-flows fills the connection tracking table of its network namespace: a health checker of the host that sends a datagram
// to ever new addresses (of loopback, 127/8), none of which answers. Each is an entry for 30 s (nf_conntrack-sysctl.rst).
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static long number(const char *name) {
	char path[96];
	long n = -1;
	snprintf(path, sizeof path, "/proc/sys/net/netfilter/%s", name);
	FILE *f = fopen(path, "r");
	if (f) { if (fscanf(f, "%ld", &n) != 1) n = -1; fclose(f); }
	return n;
}
static void send_many(int s, int count) {
	static unsigned n;
	struct sockaddr_in to = {.sin_family = AF_INET};
	for (int i = 0; i < count; i++, n++) {
		to.sin_port = htons(40000 + n / 4000000 % 8);
		to.sin_addr.s_addr = htonl(0x7f000000u | (65536 + n % 4000000));
		sendto(s, "ping", 4, 0, (struct sockaddr *)&to, sizeof to);
	}
}
int main(void) {
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	if (s < 0) { perror("socket"); return 1; }
	long before = number("nf_conntrack_count");
	send_many(s, 5000);
	if (number("nf_conntrack_count") < before + 1000) // this namespace does not track yet: a rule makes it do so; undone by set13-flows-undo.sh
		if (system("iptables -w -I OUTPUT -m conntrack --ctstate INVALID -m comment --comment set13 -j ACCEPT")) fprintf(stderr, "no iptables\n");
	long max = number("nf_conntrack_max");
	for (int i = 0; i < 400 && number("nf_conntrack_count") < max / 100 * 98; i++) { send_many(s, 5000); usleep(1000); }
	printf("ready\n");
	fflush(stdout);
	for (;;) { send_many(s, number("nf_conntrack_count") < max / 100 * 97 ? 2000 : 100); usleep(5000); }
}
