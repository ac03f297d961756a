/* Application servers: accounts | pool N | browser N | postgres | gateway | workspace */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void ready(void) { puts("ready"); fflush(stdout); }
static struct sockaddr_in at = {.sin_family = AF_INET};
static int listener(int backlog) {
	int s = socket(AF_INET, SOCK_STREAM, 0); socklen_t n = sizeof at;
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK); at.sin_port = 0;
	if (s < 0 || bind(s, (void *)&at, sizeof at) || listen(s, backlog) || getsockname(s, (void *)&at, &n)) exit(1);
	return s;
}
static void *idle(void *p) { for (;;) sleep(3600); return p; }
static void *answer(void *p) { int s = *(int *)p, a; char b[64]; for (;;) if ((a = accept(s, 0, 0)) >= 0) { if (read(a, b, sizeof b) < 0) {} close(a); } return 0; }
/* the server's side is never closed */
static int request(int s) {
	int k = socket(AF_INET, SOCK_STREAM, 0), a;
	if (k < 0) return -1;
	if (connect(k, (void *)&at, sizeof at)) { close(k); return -1; }
	a = accept(s, 0, 0);
	if (write(k, "GET /\n", 6) < 0) {}
	close(k);
	return a;
}
static int query(int port) { /* each query from its own port (0: any that is free): bind, connect, close */
	struct sockaddr_in from = {.sin_family = AF_INET}; int r = -1;
	int k = socket(AF_INET, SOCK_STREAM, 0); if (k < 0) return -1;
	from.sin_addr.s_addr = htonl(INADDR_LOOPBACK); from.sin_port = htons(port);
	if (!bind(k, (void *)&from, sizeof from) && !connect(k, (void *)&at, sizeof at)) { r = 0; shutdown(k, SHUT_WR); }
	close(k);
	return r;
}
int main(int c, char **v) {
	const char *mode = c > 1 ? v[1] : ""; int n = c > 2 ? atoi(v[2]) : 0;
	if (!strcmp(mode, "accounts")) {
		struct rlimit r = {1024, 1024}; setrlimit(RLIMIT_NOFILE, &r);
		int s = listener(64);
		for (int i = 0; i < 970; i++) request(s);
		ready();
		for (;;) { request(s); usleep(1500000); }
	}
	if (!strcmp(mode, "pool")) { /* a thread for each request, none of which ends */
		pthread_attr_t a; pthread_attr_init(&a); pthread_attr_setstacksize(&a, 65536); pthread_t t;
		for (int i = 0; i < n; i++) if (pthread_create(&t, &a, idle, 0)) break;
		ready();
		for (;;) { sleep(3); if (pthread_create(&t, &a, idle, 0)) sleep(1); }
	}
	if (!strcmp(mode, "browser")) {
		for (int i = 0; i < n; i++) { pid_t p = fork(); if (p == 0) _exit(0); if (p < 0) break; if (i % 50 == 0) usleep(10000); }
		ready();
		for (;;) { sleep(3); pid_t p = fork(); if (p == 0) _exit(0); }
	}
	if (!strcmp(mode, "postgres")) {
		struct statvfs s; if (statvfs("/dev/shm", &s)) return 1;
		double total = (double)s.f_blocks * s.f_frsize, want = total * 0.95; if (want > 600e6) want = 600e6;
		char *b = calloc(1, 1 << 20); int k = 0; double have = 0; char name[64]; int f = -1;
		memset(b, 3, 1 << 20);
		while (have + (1 << 20) <= want) {
			if (k++ % 8 == 0) { if (f >= 0) close(f); snprintf(name, sizeof name, "/dev/shm/PostgreSQL.%d", 1000 + k); f = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600); if (f < 0) return 1; }
			if (write(f, b, 1 << 20) < 0) break;
			have += 1 << 20;
		}
		ready();
		for (;;) { sleep(2); f = open("/dev/shm/PostgreSQL.1", O_RDWR | O_CREAT | O_TRUNC, 0600); if (f >= 0) { if (posix_fallocate(f, 0, 16 << 20)) fputs("could not resize shared memory segment\n", stderr); close(f); unlink("/dev/shm/PostgreSQL.1"); } }
	}
	if (!strcmp(mode, "gateway")) {
		int s = listener(512), lo = 32768, hi = 60999, told = 0, p; volatile long failures = 0; pthread_t t; double begin = now(), next = 0;
		FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "r");
		if (f) { if (fscanf(f, "%d %d", &lo, &hi) != 2) { lo = 32768; hi = 60999; } fclose(f); }
		pthread_create(&t, 0, answer, &s);
		for (p = lo;; p++) {
			if (p > hi) { p = lo; if (!told) { told = 1; ready(); } }
			if (!told && now() - begin > 13) { told = 1; ready(); }
			query(p);
			if (p % 50 == 0) usleep(told ? 8000 : 14000);
			if (told && now() > next) { next = now() + 0.1; if (query(0)) failures++; }
		}
	}
	/* workspace: a watcher for each open editor */
	int *w = calloc(9000, sizeof *w), k = 0, told = 0; char d[64];
	mkdtemp(strcpy(d, "/tmp/projXXXXXX"));
	for (;;) {
		while (k < 8192) { int i = inotify_init1(IN_CLOEXEC); if (i < 0) break; inotify_add_watch(i, "/tmp", IN_CREATE); inotify_add_watch(i, d, IN_MODIFY); w[k++] = i; }
		if (!told) { told = 1; ready(); }
		sleep(2);
		if (k > 1) close(w[--k]);
	}
}
