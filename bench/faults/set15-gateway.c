// gateway LIMIT START: answers requests, and never closes a connection that its client has closed. It may open LIMIT
// descriptors, has START of them open at first, and loses one more every 2 s; it stops 8 before the limit.
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int argc, char **argv) {
	if (argc < 3) return 2;
	int limit = atoi(argv[1]), start = atoi(argv[2]);
	struct rlimit r = {limit, limit};
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof a;
	int s = socket(AF_INET, SOCK_STREAM, 0);
	if (setrlimit(RLIMIT_NOFILE, &r) || bind(s, (void *)&a, sizeof a) || listen(s, 64) || getsockname(s, (void *)&a, &len)) { perror("gateway"); return 1; }
	int parent = getpid();
	if (fork() == 0) { // the clients
		close(s);
		char c;
		for (int n = 0; getppid() == parent || parent == 1; n++) {
			int fd = socket(AF_INET, SOCK_STREAM, 0);
			if (connect(fd, (void *)&a, sizeof a) == 0 && write(fd, "g", 1) == 1 && read(fd, &c, 1) < 0) perror("read");
			close(fd);
			if (n > start) sleep(2);
		}
		_exit(0);
	}
	for (int open = 4;;) {
		if (open >= limit - 8) { sleep(1); continue; }
		int fd = accept(s, NULL, NULL); char c;
		if (fd < 0) { perror("accept"); sleep(1); continue; }
		if (read(fd, &c, 1) == 1 && write(fd, &c, 1) < 0) perror("write");
		if (++open == start) { printf("ready\n"); fflush(stdout); }
	}
}
