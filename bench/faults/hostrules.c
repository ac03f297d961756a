// A proxy outside of the containers, in a network namespace of its own, has 3000 packet filter rules, and
// each small packet of its traffic passes all of them (iptables-restore(8)).
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

static struct sockaddr_in to;
static void fail(const char *what) { perror(what); _exit(1); }
static void *flood(void *none) {
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	if (s < 0 || connect(s, (struct sockaddr *)&to, sizeof to)) fail("connect");
	for (;;) if (send(s, "x", 1, 0) < 0) usleep(10);
	return none;
}
int main(void) {
	struct ifreq r = {.ifr_name = "lo", .ifr_flags = IFF_UP};
	socklen_t n = sizeof to;
	pthread_t t;
	if (unshare(CLONE_NEWNET)) fail("unshare");
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	if (ioctl(s, SIOCSIFFLAGS, &r)) fail("lo up");
	FILE *p = popen("iptables-restore", "w");
	if (!p) fail("iptables-restore");
	fprintf(p, "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n");
	for (int i = 0; i < 3000; i++) fprintf(p, "-A INPUT -s 10.%d.%d.%d/32 -p udp -j DROP\n", i / 65536, i / 256 % 256, i % 256);
	fprintf(p, "COMMIT\n");
	if (pclose(p)) fail("iptables-restore");
	to.sin_family = AF_INET; to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(s, (struct sockaddr *)&to, sizeof to) || getsockname(s, (struct sockaddr *)&to, &n)) fail("bind");
	if (pthread_create(&t, NULL, flood, NULL)) fail("thread");
	if (write(1, "ready\n", 6) < 0) return 1;
	flood(NULL);
	return 0;
}
