// links WORKERS PAIRS: makes PAIRS pairs of virtual interfaces, removes all of them at once, and
// begins again, veth(4) and rtnetlink(7), as an agent of an overlay network does whose view of
// the host is never what it wants. The kernel holds one lock of all network settings meanwhile.
#define _GNU_SOURCE
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct message { struct nlmsghdr h; struct ifinfomsg i; char rest[256]; };

static struct rtattr *put(struct message *m, int type, const void *data, int len) {
	struct rtattr *a = (struct rtattr *)((char *)m + NLMSG_ALIGN(m->h.nlmsg_len));
	a->rta_type = type;
	a->rta_len = RTA_LENGTH(len);
	memcpy(RTA_DATA(a), data, len);
	m->h.nlmsg_len = NLMSG_ALIGN(m->h.nlmsg_len) + RTA_ALIGN(a->rta_len);
	return a;
}

static int ask(int fd, struct message *m) { // returns an errno
	struct { struct nlmsghdr h; struct nlmsgerr e; char rest[512]; } answer;
	if (send(fd, m, m->h.nlmsg_len, 0) < 0 || recv(fd, &answer, sizeof answer, 0) < (int)NLMSG_LENGTH(sizeof answer.e)) return -1;
	return answer.h.nlmsg_type == NLMSG_ERROR ? -answer.e.error : -1;
}

static struct message begin(int type, int flags, int group) {
	struct message m = {.h = {.nlmsg_len = NLMSG_LENGTH(sizeof m.i), .nlmsg_type = type, .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | flags}};
	put(&m, IFLA_GROUP, &group, sizeof group);
	return m;
}

static void round_of(int fd, int id, int pairs) {
	char name[16];
	struct message m;
	for (int i = 0; i < pairs; i++) {
		m = begin(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, 1000 + id);
		snprintf(name, sizeof name, "f%dx%d", id, i);
		put(&m, IFLA_IFNAME, name, strlen(name) + 1);
		struct rtattr *a = put(&m, IFLA_LINKINFO, "", 0);
		put(&m, IFLA_INFO_KIND, "veth", 4);
		a->rta_len = (char *)&m + m.h.nlmsg_len - (char *)a;
		int e = ask(fd, &m);
		if (e) { fprintf(stderr, "make %s: %s\n", name, strerror(e)); _exit(1); }
	}
	m = begin(RTM_DELLINK, 0, 1000 + id);
	ask(fd, &m);
}

int main(int argc, char **argv) {
	int workers = argc > 1 ? atoi(argv[1]) : 0, pairs = argc > 2 ? atoi(argv[2]) : 0;
	if (workers < 1 || workers > 32 || pairs < 1 || pairs > 200) { fprintf(stderr, "usage: links WORKERS PAIRS\n"); return 2; }
	int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
	round_of(fd, 0, 1); // ends here if it may not
	for (int i = 0; i < workers; i++) if (fork() == 0) for (fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);;) round_of(fd, i, pairs);
	printf("ready\n");
	fflush(stdout);
	pause();
	return 0;
}
