/* A resolver of the host: asks from one socket at many ports of the loopback, each question a flow of its own.
   The host's table of flows is that of a small node: 8000. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#define MAX "/proc/sys/net/netfilter/nf_conntrack_max"
#define COUNT "/proc/sys/net/netfilter/nf_conntrack_count"
#define KEEP "/var/tmp/p18-resolver.max"
static long get(const char *p) { FILE *f = fopen(p, "r"); long n = -1; if (f) { if (fscanf(f, "%ld", &n) != 1) n = -1; fclose(f); } return n; }
static int put(const char *p, long n) { FILE *f = fopen(p, "w"); if (!f) return -1; fprintf(f, "%ld\n", n); return fclose(f); }
static void end(int s) { long n = get(KEEP); if (n > 0) put(MAX, n); unlink(KEEP); _exit(128 + s); }
int main(void) {
	if (get(MAX) < 0 && system("modprobe nf_conntrack")) {}
	long max = get(MAX); if (max < 0) { fputs("no table of flows\n", stderr); return 1; }
	signal(SIGTERM, end); signal(SIGINT, end);
	if (put(KEEP, max) || put(MAX, 8000)) { perror(MAX); return 1; }
	struct sockaddr_in a = {.sin_family = AF_INET}; int k = socket(AF_INET, SOCK_DGRAM, 0), told = 0;
	a.sin_addr.s_addr = htonl(0x7f000035); /* 127.0.0.53 */
	for (;;) {
		long have = 0;
		for (int i = 0; i < 7750; i++) {
			if (have > 7750 && i >= 7000) break;
			a.sin_port = htons(20000 + i);
			sendto(k, "q", 1, 0, (void *)&a, sizeof a);
			if (i % 100 == 0) { have = get(COUNT); usleep(5000); }
		}
		if (!told) { told = 1; puts("ready"); fflush(stdout); }
		sleep(8);
	}
}
