// addresses COUNT WORKERS: a proxy adds COUNT addresses to its interface for each configuration and
// removes them again, rtnetlink(7). Each change takes the lock of network configuration, which all
// containers of the host share.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/rtnetlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int change(int s, int type, int flags, unsigned address) {
	struct { struct nlmsghdr h; struct ifaddrmsg a; struct rtattr r; unsigned address; } m;
	struct { struct nlmsghdr h; struct nlmsgerr e; char rest[512]; } answer;
	unsigned value = htonl(address);
	memset(&m, 0, sizeof m);
	m.h = (struct nlmsghdr){.nlmsg_len = sizeof m, .nlmsg_type = type, .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | flags};
	m.a = (struct ifaddrmsg){.ifa_family = AF_INET, .ifa_prefixlen = 32, .ifa_index = 1};
	m.r = (struct rtattr){.rta_len = RTA_LENGTH(4), .rta_type = IFA_LOCAL};
	m.address = value;
	if (send(s, &m, sizeof m, 0) < 0 || recv(s, &answer, sizeof answer, 0) < 0) return -1;
	return answer.e.error;
}

int main(int argc, char **argv) {
	long count = argc > 2 ? atol(argv[1]) : 0, workers = argc > 2 ? atol(argv[2]) : 0, worker = 0;
	if (count < 1 || count > 4000 || workers < 1 || workers > 16) { fprintf(stderr, "usage: addresses COUNT WORKERS\n"); return 2; }
	int s = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
	if (change(s, RTM_NEWADDR, NLM_F_CREATE, 0x0a000001) != 0) { fprintf(stderr, "no address can be added\n"); return 1; }
	printf("ready\n");
	fflush(stdout);
	for (long i = 1; i < workers && worker == 0; i++)
		if (fork() == 0) worker = i;
	s = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
	for (;;) {
		unsigned base = 0x0a010000 + ((unsigned)worker << 16);
		for (unsigned i = 0; i < count; i++) change(s, RTM_NEWADDR, NLM_F_CREATE, base + i);
		for (unsigned i = 0; i < count; i++) change(s, RTM_DELADDR, 0, base + i);
	}
}
