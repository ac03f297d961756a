// frontend BACKLOG MS CLIENTS: accepts one connection in MS milliseconds; CLIENTS clients connect all the time, and give up after a second.
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
static struct sockaddr_in a = {.sin_family = AF_INET};
static void *client(void *p) {
	char c; struct timeval t = {1, 0};
	for (;;) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t); setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
		if (connect(fd, (void *)&a, sizeof a) == 0 && write(fd, "g", 1) == 1 && read(fd, &c, 1) < 0) c = 0;
		close(fd);
		usleep(20000);
	}
	return p;
}
int main(int argc, char **argv) {
	socklen_t len = sizeof a; pthread_t t; char c;
	if (argc < 4) return 2;
	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	int s = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(s, (void *)&a, sizeof a) || listen(s, atoi(argv[1])) || getsockname(s, (void *)&a, &len)) { perror("frontend"); return 1; }
	for (int i = 0; i < atoi(argv[3]); i++) pthread_create(&t, NULL, client, NULL);
	sleep(1);
	printf("ready\n"); fflush(stdout);
	for (;; usleep(atol(argv[2]) * 1000)) {
		int fd = accept(s, NULL, NULL);
		if (fd < 0) continue;
		if (recv(fd, &c, 1, MSG_DONTWAIT) == 1) send(fd, &c, 1, MSG_NOSIGNAL);
		close(fd);
	}
}
