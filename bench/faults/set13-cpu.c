// set13-cpu requests THREADS MS PAUSE_MS | sort THREADS | crash COUNT | hangup COUNT: ways in which a container uses CPU time.
// requests: bursts of work. sort: threads that sort numbers for ever. crash: COUNT services that start (0.2 s of work),
// fail, and are started again at once. hangup: event loops that never close a socket whose peer has gone, epoll(7).
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long ms, pause_ms;
static void fail(const char *what) { perror(what); exit(1); }
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }
static void work(double m) { for (double end = now() + m; now() < end;) for (volatile int i = 0; i < 5000; i++); }
static void *requests(void *p) { for (;;) { work(ms); if (pause_ms) usleep(pause_ms * 1000); } return p; }
static int less(const void *a, const void *b) { int x = *(const int *)a, y = *(const int *)b; return (x > y) - (x < y); }
static void *sorts(void *p) {
	const int n = 500000;
	int *a = malloc(n * sizeof *a);
	unsigned seed = (unsigned)(long)p;
	for (;;) { for (int i = 0; i < n; i++) a[i] = rand_r(&seed); qsort(a, n, sizeof *a, less); }
	return p;
}
static void *crashes(void *p) {
	for (;;) {
		pid_t c = fork();
		if (c == 0) {
			size_t n = 24 << 20;
			char *m = malloc(n);
			if (m) memset(m, 1, n);
			struct timespec t;
			do { for (volatile int i = 0; i < 5000; i++); clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); } while (t.tv_sec * 1e3 + t.tv_nsec / 1e6 < 200);
			_exit(1); // Error: connect ECONNREFUSED
		}
		if (c > 0) waitpid(c, NULL, 0); else usleep(10000);
	}
	return p;
}
static void *hangup(void *p) {
	int s[2], e = epoll_create1(0);
	struct epoll_event v = {.events = EPOLLIN | EPOLLRDHUP}, got[16];
	char c;
	if (e < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, s)) fail("socketpair");
	epoll_ctl(e, EPOLL_CTL_ADD, s[0], &v);
	close(s[1]);
	for (;;) if (epoll_wait(e, got, 16, -1) > 0 && recv(s[0], &c, 1, MSG_DONTWAIT) > 0) fail("data");
	return p;
}
int main(int argc, char **argv) {
	const char *k = argc > 1 ? argv[1] : "";
	int n = argc > 2 ? atoi(argv[2]) : 0;
	void *(*f)(void *) = !strcmp(k, "requests") && argc > 4 ? requests : !strcmp(k, "sort") ? sorts : !strcmp(k, "crash") ? crashes : !strcmp(k, "hangup") ? hangup : NULL;
	if (!f || n < 1 || n > 16) { fprintf(stderr, "usage: set13-cpu requests THREADS MS PAUSE_MS | sort | crash | hangup COUNT\n"); return 2; }
	if (f == requests) { ms = atol(argv[3]); pause_ms = atol(argv[4]); }
	prctl(PR_SET_NAME, f == sorts ? "report" : f == crashes ? "supervisord" : f == hangup ? "relay" : "app");
	for (long i = 0; i < n; i++) { pthread_t t; if (pthread_create(&t, NULL, f, (void *)(i + 1))) fail("pthread_create"); }
	printf("ready\n");
	fflush(stdout);
	pause();
	return 0;
}
