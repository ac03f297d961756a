// lost-fragments PERCENT: a peer whose datagrams arrive without their last fragment. The kernel keeps the others for 30 s
// to reassemble them, and this holds PERCENT of net.ipv4.ipfrag_high_thresh of this network namespace, above which it
// drops every fragmented datagram. Raw packets over loopback.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/ip.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static long held(void) {
	char line[256];
	long n, bytes = -1;
	FILE *f = fopen("/proc/net/sockstat", "r");
	while (f && fgets(line, sizeof line, f)) if (sscanf(line, "FRAG: inuse %ld memory %ld", &n, &bytes) == 2) break;
	if (f) fclose(f);
	return bytes;
}
int main(int argc, char **argv) {
	struct { struct iphdr ip; char data[1400]; } p;
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	long high = 0;
	FILE *f = fopen("/proc/sys/net/ipv4/ipfrag_high_thresh", "r");
	if (argc < 2 || !f || fscanf(f, "%ld", &high) != 1) { perror("ipfrag_high_thresh"); return 1; }
	if (high > 16 << 20) high = 16 << 20;
	int s = socket(AF_INET, SOCK_RAW, IPPROTO_RAW), ready = 0;
	if (s < 0) { perror("socket"); return 1; }
	memset(&p, 0, sizeof p);
	p.ip.version = 4; p.ip.ihl = 5; p.ip.ttl = 64; p.ip.protocol = IPPROTO_UDP;
	p.ip.tot_len = htons(sizeof p); p.ip.frag_off = htons(IP_MF);
	p.ip.saddr = p.ip.daddr = to.sin_addr.s_addr;
	for (unsigned short id = 1;; usleep(200000)) {
		for (int n = 0; held() < high / 100 * atol(argv[1]) && n < 4000; n += 10)
			for (int i = 0; i < 10; i++) { p.ip.id = htons(id++); if (sendto(s, &p, sizeof p, 0, (void *)&to, sizeof to) < 0) { perror("sendto"); return 1; } }
		if (!ready) { fprintf(stderr, "%ld of %ld bytes\n", held(), high); printf("ready\n"); fflush(stdout); ready = 1; }
	}
}
