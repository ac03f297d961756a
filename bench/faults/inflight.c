// A service manager passes file descriptors to a process that never takes them, until as many are under way
// as its limit of open files allows. The kernel counts them per user, so that other containers of the same user
// cannot pass any: ETOOMANYREFS, "Too many references: cannot splice" (unix(7)).
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX 250
int main(void) {
	union { char b[CMSG_SPACE(MAX * sizeof(int))]; struct cmsghdr h; } c;
	struct rlimit l;
	long all = 0;
	int s[2] = {-1, -1}, full = 0;
	getrlimit(RLIMIT_NOFILE, &l);
	l.rlim_cur = l.rlim_max;
	setrlimit(RLIMIT_NOFILE, &l);
	while (all < 1200000 && !full) {
		struct iovec v = {"x", 1};
		struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = c.b, .msg_controllen = sizeof c.b};
		if (s[0] < 0) {
			if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, s)) break;
			c.h.cmsg_level = SOL_SOCKET; c.h.cmsg_type = SCM_RIGHTS; c.h.cmsg_len = CMSG_LEN(MAX * sizeof(int));
			for (int i = 0; i < MAX; i++) memcpy(CMSG_DATA(&c.h) + i * sizeof(int), &(int){0}, sizeof(int));
		}
		if (sendmsg(s[0], &m, MSG_NOSIGNAL) == 1) all += MAX;
		else if (errno == ETOOMANYREFS) full = 1;
		else if (errno == EAGAIN) s[0] = -1; // this pair is full
		else { perror("sendmsg"); return 1; }
	}
	fprintf(stderr, "%ld descriptors under way, limit %s\n", all, full ? "reached" : "not reached");
	if (write(1, "ready\n", 6) < 0) return 1;
	for (;;) pause();
}
