// A service without keep-alive closes each of thousands of connections first, until its network namespace has tcp_max_tw_buckets of them in TIME-WAIT.
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
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void fail(const char *what) { perror(what); exit(1); }
static void ready(void) { printf("ready\n"); fflush(stdout); }
static long number(const char *n, const char *key) { char b[4096]; int f = open(n, O_RDONLY); if (f < 0) return 0; ssize_t r = read(f, b, sizeof b - 1); close(f); if (r <= 0) return 0; b[r] = 0; char *p = key ? strstr(b, key) : b; return p ? atol(p + (key ? strlen(key) : 0)) : 0; }
int main(void) {
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(8080)};
	int l = socket(AF_INET, SOCK_STREAM, 0), one = 1, said = 0;
	setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 128)) fail("listen");
	long max = number("/proc/sys/net/ipv4/tcp_max_tw_buckets", NULL), tw = 0;
	if (max <= 0) max = 16384;
	double begin = now();
	for (unsigned long n = 0;; n++) {
		a.sin_addr.s_addr = htonl(0x7f000001 + n / 20000 % 64);
		int c = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(c, (struct sockaddr *)&a, sizeof a)) { close(c); usleep(1000); n += 20000 - n % 20000; continue; }
		int s = accept(l, NULL, NULL);
		close(s); close(c);
		if (n % 256 == 0) tw = number("/proc/net/sockstat", "tw ");
		if (!said && (tw > max / 100 * 92 || now() - begin > 20)) { said = 1; ready(); }
		if (tw >= max / 1000 * 985 || tw > 270000) usleep(400); // keeps it full
	}
}
