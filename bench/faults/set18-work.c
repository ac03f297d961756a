/* Services that calculate: build J | match N | digest N | queue N | requests T WORK_MS PAUSE_MS */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static double now(clockid_t c) { struct timespec t; clock_gettime(c, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static double work_, pause_;
static void burn(double s) {
	double e = now(CLOCK_THREAD_CPUTIME_ID) + s;
	volatile unsigned x = 1;
	while (now(CLOCK_THREAD_CPUTIME_ID) < e)
		for (int i = 0; i < 2000; i++) x = x * 1664525u + 1013904223u;
}
/* one compiler: reads its input, keeps a tree of 30 MB, writes an object */
static int compile(double seconds) {
	size_t n = 30 << 20; volatile char *m = malloc(n); char b[65536]; char name[64];
	double e = now(CLOCK_THREAD_CPUTIME_ID) + seconds;
	if (!m) return 1;
	while (now(CLOCK_THREAD_CPUTIME_ID) < e)
		for (size_t i = 0; i < n; i += 512) m[i] = m[i] * 3 + 1;
	snprintf(name, sizeof name, "/tmp/unit-%d.o", getpid());
	int f = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	memset(b, 5, sizeof b);
	if (f >= 0) { if (write(f, b, sizeof b) < 0) {} close(f); unlink(name); }
	return 0;
}
/* (a+)+b against aaaa...: the classic backtracking */
static volatile long steps;
static int match(const char *s) {
	int n = 0; steps++;
	while (s[n] == 'a') n++;
	for (int k = n; k > 0; k--) { if (s[k] == 'b') return 1; if (match(s + k)) return 1; }
	return 0;
}
static void *regex(void *p) { for (;;) match("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaac"); return p; }
static void *digest(void *p) {
	size_t n = 2 << 20; volatile uint64_t *m = malloc(n); uint64_t a = (uintptr_t)p + 1;
	for (size_t i = 0; i < n / 8; i++) m[i] = i;
	for (;;) { a = a * 6364136223846793005ull + 1442695040888963407ull; size_t k = (a >> 33) % (n / 8); a ^= m[k]; m[k] = a * a; }
	return 0;
}
static void *loop(void *p) {
	int e = epoll_create1(0), w = eventfd(1, 0), s[2]; char b[256];
	struct epoll_event ev = {.events = EPOLLIN};
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, s)) return 0;
	epoll_ctl(e, EPOLL_CTL_ADD, w, &ev);
	for (;;) {
		epoll_wait(e, &ev, 1, 1000);
		int fl = fcntl(s[0], F_GETFL); fcntl(s[0], F_SETFL, fl | O_NONBLOCK);
		if (recv(s[0], b, sizeof b, 0) < 0 && errno != EAGAIN) break;
		fcntl(s[0], F_SETFL, fl);
	}
	return p;
}
static void *requests(void *p) { for (;;) { burn(work_); usleep(pause_ * 1e6); } return p; }
static void start(int n, void *(*f)(void *)) { for (long i = 0; i < n; i++) { pthread_t t; pthread_create(&t, 0, f, (void *)i); } }
int main(int c, char **v) {
	const char *mode = c > 1 ? v[1] : "";
	int n = c > 2 ? atoi(v[2]) : 2;
	if (!strcmp(mode, "unit")) return compile(atof(v[2]));
	if (!strcmp(mode, "build")) {
		int running = 0; char t[32]; long k = 0; puts("ready"); fflush(stdout);
		for (;;) {
			while (running < n) {
				snprintf(t, sizeof t, "%.1f", 0.6 + k++ % 7 * 0.3);
				pid_t p = fork();
				if (p == 0) { execl("/proc/self/exe", "cc1plus", "unit", t, (char *)0); _exit(1); }
				if (p < 0) { usleep(100000); break; }
				running++;
			}
			if (wait(0) > 0) running--;
		}
	}
	if (!strcmp(mode, "match")) start(n, regex);
	else if (!strcmp(mode, "digest")) start(n, digest);
	else if (!strcmp(mode, "queue")) { for (int i = 1; i < n; i++) if (fork() == 0) break; else continue; start(1, loop); }
	else { work_ = (c > 3 ? atof(v[3]) : 10) / 1e3; pause_ = (c > 4 ? atof(v[4]) : 20) / 1e3; start(n, requests); }
	sleep(1);
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
