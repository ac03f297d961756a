// A routing daemon in a container withdraws and announces 6000 routes again and again. Each change takes the lock of
// the network configuration (rtnl), which creating or removing any container's network needs too (rtnetlink(7)).
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

struct change { struct nlmsghdr h; struct rtmsg r; char a[16]; };
static void put(struct change *c, unsigned short type, unsigned n) {
	unsigned dst = htonl((10U << 24) + n), out = 1; // through lo
	struct rtattr *a = (void *)c->a;
	memset(c, 0, sizeof *c);
	c->h.nlmsg_len = sizeof *c; c->h.nlmsg_type = type; c->h.nlmsg_flags = NLM_F_REQUEST | (type == RTM_NEWROUTE ? NLM_F_CREATE : 0);
	c->r.rtm_family = AF_INET; c->r.rtm_dst_len = 32; c->r.rtm_table = RT_TABLE_MAIN; c->r.rtm_protocol = RTPROT_BOOT;
	c->r.rtm_scope = RT_SCOPE_LINK; c->r.rtm_type = RTN_UNICAST;
	a->rta_type = RTA_DST; a->rta_len = RTA_LENGTH(4); memcpy(RTA_DATA(a), &dst, 4);
	a = (void *)(c->a + 8);
	a->rta_type = RTA_OIF; a->rta_len = RTA_LENGTH(4); memcpy(RTA_DATA(a), &out, 4);
}
static void daemon_loop(unsigned base) {
	static struct change batch[200];
	static char answers[1 << 16];
	int s = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE), link_messages = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
	struct { struct nlmsghdr h; struct ifinfomsg i; } up = {{sizeof up, RTM_NEWLINK, NLM_F_REQUEST, 0, 0}, {.ifi_index = 1}};
	if (s < 0 || link_messages < 0) exit(1);
	for (unsigned round = 0;; round++) {
		for (unsigned i = 0; i < 3000; i += 200) {
			for (unsigned j = 0; j < 200; j++) put(&batch[j], round % 2 ? RTM_DELROUTE : RTM_NEWROUTE, base + i + j);
			if (send(s, batch, sizeof batch, 0) < 0) { perror("routes"); exit(1); }
			while (recv(s, answers, sizeof answers, MSG_DONTWAIT) > 0);
			// and the daemon sets and looks at its link, as many do after each change
			up.i.ifi_flags = IFF_UP; up.i.ifi_change = IFF_UP;
			if (send(link_messages, &up, sizeof up, 0) < 0) exit(1);
			while (recv(link_messages, answers, sizeof answers, MSG_DONTWAIT) > 0);
		}
	}
}
int main(void) {
	struct ifreq r = {.ifr_name = "lo", .ifr_flags = IFF_UP};
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	if (s < 0 || ioctl(s, SIOCSIFFLAGS, &r)) { perror("lo up"); return 1; }
	if (fork() == 0) daemon_loop(0x100000);
	if (write(1, "ready\n", 6) < 0) return 1;
	daemon_loop(0x200000);
	return 0;
}
