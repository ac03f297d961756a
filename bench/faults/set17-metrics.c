/* A collector of measurements: UDP packets come 4,000 a second, and it takes 1,000 a second out of a small buffer. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
int main(void) {
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(8125), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	char b[512];
	int s = socket(AF_INET, SOCK_DGRAM, 0), r = 65536;
	setsockopt(s, SOL_SOCKET, SO_RCVBUF, &r, sizeof r);
	if (bind(s, (void *)&a, sizeof a)) { perror("bind"); return 1; }
	if (fork() == 0) {
		int c = socket(AF_INET, SOCK_DGRAM, 0);
		memset(b, 'm', sizeof b);
		for (;;) {
			for (int i = 0; i < 40; i++) sendto(c, b, 120, 0, (void *)&a, sizeof a);
			usleep(10000);
		}
	}
	sleep(2);
	puts("ready"); fflush(stdout);
	for (;;) {
		if (recv(s, b, sizeof b, 0) < 0) perror("recv");
		usleep(950);
	}
}
