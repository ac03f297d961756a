/* A proxy: clients end their connections, and it keeps each socket (CLOSE-WAIT). Its limit is 4096 descriptors. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int c, char **v) {
	int port = c > 1 ? atoi(v[1]) : 8081;
	struct rlimit r = {4096, 4096};
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int s = socket(AF_INET, SOCK_STREAM, 0), one = 1, n = 0, k;
	setrlimit(RLIMIT_NOFILE, &r);
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(s, (void *)&a, sizeof a) || listen(s, 512)) { perror("listen"); return 1; }
	for (;;) {
		int f = socket(AF_INET, SOCK_STREAM, 0);
		if (f < 0 || connect(f, (void *)&a, sizeof a)) {
			if (f >= 0) close(f);
			usleep(200000);
			continue;
		}
		if (write(f, "GET / HTTP/1.0\r\n\r\n", 18) < 0) perror("write");
		k = accept(s, 0, 0);
		if (k < 0) perror("accept");
		close(f);
		if (++n == 3850) { puts("ready"); fflush(stdout); }
		if (n >= 3850) usleep(500000);
	}
}
