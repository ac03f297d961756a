// fdpass HELD: a broker passes sockets over sockets, unix(7), SCM_RIGHTS. HELD sockets wait in one
// ring of queues, and each short session ends with its own socket in its queue, so the kernel's
// collector of such sockets walks the ring again and again.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static int pass(int over, int fd) {
	union { struct cmsghdr head; char room[CMSG_SPACE(sizeof(int))]; } control;
	struct iovec data = {.iov_base = "x", .iov_len = 1};
	struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	memset(&control, 0, sizeof control);
	control.head.cmsg_level = SOL_SOCKET;
	control.head.cmsg_type = SCM_RIGHTS;
	control.head.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
	return sendmsg(over, &m, 0) == 1 ? 0 : -1;
}

int main(int argc, char **argv) {
	long held = argc > 1 ? atol(argv[1]) : 0;
	static int ring[4000][2];
	struct rlimit r;
	int s[2];
	if (held < 2 || held > 4000) { fprintf(stderr, "usage: fdpass HELD\n"); return 2; }
	if (getrlimit(RLIMIT_NOFILE, &r) == 0) { r.rlim_cur = r.rlim_max; setrlimit(RLIMIT_NOFILE, &r); }
	for (long i = 0; i < held; i++)
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, ring[i]) != 0) { perror("socketpair"); return 1; }
	for (long i = 0; i < held; i++)
		if (pass(ring[i][0], ring[(i + 1) % held][1]) != 0) { perror("sendmsg"); return 1; }
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, s) != 0) { perror("socketpair"); return 1; }
		if (pass(s[0], s[1]) != 0 || pass(s[1], s[0]) != 0) usleep(1000);
		close(s[0]);
		close(s[1]);
	}
}
