// A message broker sends over loopback to a subscriber that does not read any more, 16 MiB a second up to 1550 MiB. The
// kernel holds these buffers outside of the container's memory limit, and all sockets of the host share tcp_mem (tcp(7)).
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static void fail(const char *what) { perror(what); exit(1); }
int main(void) {
	static char block[32768];
	const long max = 1550L << 20;
	struct sockaddr_in to = {.sin_family = AF_INET};
	socklen_t n = sizeof to;
	long all = 0;
	struct rlimit files;
	int s = -1, full = 0, l = socket(AF_INET, SOCK_STREAM, 0);
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (l < 0 || bind(l, (struct sockaddr *)&to, sizeof to) || listen(l, 1024) || getsockname(l, (struct sockaddr *)&to, &n)) fail("listen");
	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	memset(block, 'm', sizeof block);
	if (write(1, "ready\n", 6) < 0) return 1;
	while (all < max) {
		if (s < 0) { // the next subscriber
			s = socket(AF_INET, SOCK_STREAM, 0);
			if (s < 0 || connect(s, (struct sockaddr *)&to, sizeof to) || accept(l, NULL, NULL) < 0) { perror("connect"); break; }
			full = 0;
		}
		for (int i = 0; i < 51; i++) {
			ssize_t k = send(s, block, sizeof block, MSG_DONTWAIT | MSG_NOSIGNAL);
			if (k > 0) { all += k; full = 0; }
			else if (++full >= 3) { s = -1; break; }
			else break;
		}
		usleep(full ? 20000 : 100000);
	}
	for (;;) pause();
}
