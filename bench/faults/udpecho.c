// A name server over loopback: 2,000 questions and answers a second, none lost.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <sys/socket.h>
static void fail(const char *what) { perror(what); exit(1); }
static void ready(void) { printf("ready\n"); fflush(stdout); }
int main(void) {
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, f;
	socklen_t n = sizeof a;
	int l = socket(AF_INET, SOCK_DGRAM, 0), s = socket(AF_INET, SOCK_DGRAM, 0);
	char b[200] = {0};
	if (bind(l, (struct sockaddr *)&a, sizeof a) || getsockname(l, (struct sockaddr *)&a, &n) || connect(s, (struct sockaddr *)&a, n)) fail("bind");
	if (fork() == 0) for (;;) { socklen_t m = sizeof f; ssize_t r = recvfrom(l, b, sizeof b, 0, (struct sockaddr *)&f, &m); if (r > 0) sendto(l, b, r, 0, (struct sockaddr *)&f, m); }
	ready();
	for (;;) { for (int i = 0; i < 20; i++) { send(s, b, 100, 0); recv(s, b, sizeof b, 0); } usleep(9000); }
}
