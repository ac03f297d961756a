// shipper LINES: a healthy log shipper: LINES lines a second arrive in a file, are read, and are sent over UDP to a collector beside it.
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
static int s;
static void *collector(void *p) { char b[2048]; long n = 0; while (recv(s, b, sizeof b, 0) > 0) n++; return p; }
int main(int argc, char **argv) {
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof a; pthread_t t; char b[2048];
	off_t at = 0; long rate = argc > 1 ? atol(argv[1]) : 100;
	s = socket(AF_INET, SOCK_DGRAM, 0);
	int out = socket(AF_INET, SOCK_DGRAM, 0), fd = open("/data/app.log", O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600);
	if (fd < 0 || bind(s, (void *)&a, sizeof a) || getsockname(s, (void *)&a, &len)) { perror("shipper"); return 1; }
	pthread_create(&t, NULL, collector, NULL);
	printf("ready\n"); fflush(stdout);
	for (long n = 0;; n++) {
		int k = snprintf(b, sizeof b, "2024-05-01T10:00:00Z INFO request %ld GET /items 200 12ms\n", n);
		if (write(fd, b, k) < 0) perror("write");
		if (pread(fd, b, k, at) > 0) sendto(out, b, k, 0, (void *)&a, sizeof a);
		at += k;
		if (n % 20000 == 19999 ) { at = 0; if (ftruncate(fd, 0)) perror("truncate"); }
		usleep(1000000 / rate);
	}
}
