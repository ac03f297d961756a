// neighbours ADDRESSES: a monitor asks ADDRESSES hosts of a large flat network again and again, arp(7).
// All containers of the host share one table of neighbours, whose limit is gc_thresh3.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

// link makes a pair of interfaces, of which the first has the network 10.64.0.0/16.
static int link_up(void) {
	struct { struct nlmsghdr h; struct ifinfomsg i; struct rtattr name; char n[8]; struct rtattr info; struct rtattr kind; char k[4]; } m;
	struct { struct nlmsghdr h; struct nlmsgerr e; char rest[512]; } answer;
	struct ifreq r = {.ifr_name = "flat0"};
	struct sockaddr_in *a = (struct sockaddr_in *)&r.ifr_addr;
	int s = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE), control = socket(AF_INET, SOCK_DGRAM, 0);
	memset(&m, 0, sizeof m);
	m.h = (struct nlmsghdr){.nlmsg_len = sizeof m, .nlmsg_type = RTM_NEWLINK, .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE};
	m.name = (struct rtattr){.rta_len = RTA_LENGTH(6), .rta_type = IFLA_IFNAME};
	memcpy(m.n, "flat0", 6);
	m.info = (struct rtattr){.rta_len = RTA_LENGTH(sizeof m.kind + 4), .rta_type = IFLA_LINKINFO};
	m.kind = (struct rtattr){.rta_len = RTA_LENGTH(4), .rta_type = IFLA_INFO_KIND};
	memcpy(m.k, "veth", 4);
	if (send(s, &m, sizeof m, 0) < 0 || recv(s, &answer, sizeof answer, 0) < 0 || answer.e.error != 0) return -1;
	*a = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(0x0a400001)}};
	if (ioctl(control, SIOCSIFADDR, &r) != 0) return -1;
	a->sin_addr.s_addr = htonl(0xffff0000);
	if (ioctl(control, SIOCSIFNETMASK, &r) != 0) return -1;
	r.ifr_flags = IFF_UP;
	if (ioctl(control, SIOCSIFFLAGS, &r) != 0) return -1;
	struct ifreq peer = {.ifr_name = "veth0", .ifr_flags = IFF_UP};
	return ioctl(control, SIOCSIFFLAGS, &peer);
}

int main(int argc, char **argv) {
	long addresses = argc > 1 ? atol(argv[1]) : 0;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(161)};
	int s[10];
	if (addresses < 1 || addresses > 960) { fprintf(stderr, "usage: neighbours ADDRESSES\n"); return 2; }
	if (link_up() != 0) { perror("veth"); return 1; }
	// Packets that wait for an answer fill a socket's buffer, so each serves 100 addresses.
	for (int i = 0; i < 10; i++) s[i] = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		for (long i = 0; i < addresses; i++) {
			at.sin_addr.s_addr = htonl(0x0a400100 + (unsigned)i);
			// An error only says that the host did not answer the last time.
			sendto(s[i / 100], "?", 1, 0, (struct sockaddr *)&at, sizeof at);
		}
		usleep(500000);
	}
}
