// orphans MIB PER_SECOND KIB: a server sends answers of KIB that its clients never read, and closes
// the connections. The kernel keeps the data of such orphans, tcp(7), up to MIB in all, and charges
// it to no container with cgroup v1.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

// answer makes one connection and returns the bytes that the kernel keeps for it.
static long answer(int listener, struct sockaddr_in *at, long bytes) {
	static char page[65536];
	int size = (int)bytes, client = socket(AF_INET, SOCK_STREAM, 0);
	long sent = 0, n;
	if (client < 0 || connect(client, (struct sockaddr *)at, sizeof *at) != 0) { perror("client"); exit(1); }
	int server = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
	if (server < 0) { perror("accept"); exit(1); }
	setsockopt(server, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
	while (sent < bytes && (n = write(server, page, sizeof page)) > 0) sent += n;
	close(server);
	return sent;
}

int main(int argc, char **argv) {
	long mib = argc > 3 ? atol(argv[1]) : 0, rate = argc > 3 ? atol(argv[2]) : 0, kib = argc > 3 ? atol(argv[3]) : 0;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t size = sizeof at;
	struct rlimit r;
	if (mib < 1 || mib > 640 || rate < 1 || kib < 1 || kib > 4096) { fprintf(stderr, "usage: orphans MIB PER_SECOND KIB\n"); return 2; }
	if (getrlimit(RLIMIT_NOFILE, &r) == 0) { r.rlim_cur = r.rlim_max; setrlimit(RLIMIT_NOFILE, &r); }
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(listener, 16) != 0) { perror("listener"); return 1; }
	getsockname(listener, (struct sockaddr *)&at, &size);
	printf("ready\n");
	fflush(stdout);
	for (long sent = 0; sent < mib << 20; usleep(1000000 / rate)) sent += answer(listener, &at, kib << 10);
	for (;;) pause();
}
