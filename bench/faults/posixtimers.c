// posixtimers [COUNT]: a PHP runtime makes a timer for the time limit of each request, timer_create(2), and deletes none. Each
// reserves a queued signal, and 95 % of RLIMIT_SIGPENDING of the user are taken; above: "Resource temporarily unavailable".
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv) {
	struct rlimit r;
	getrlimit(RLIMIT_SIGPENDING, &r);
	if (r.rlim_cur == RLIM_INFINITY || r.rlim_cur > 130000) { r.rlim_cur = 4096; setrlimit(RLIMIT_SIGPENDING, &r); } // bounded
	long count = argc > 1 ? atol(argv[1]) : (long)(r.rlim_cur * 95 / 100), n = 0;
	prctl(PR_SET_NAME, "frankenphp");
	signal(SIGALRM, SIG_IGN);
	for (; n < count; n++) {
		timer_t t;
		struct sigevent e = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
		struct itimerspec in = {{0, 0}, {3600, 0}};
		if (timer_create(CLOCK_MONOTONIC, &e, &t)) break; // others of the same user have some
		timer_settime(t, 0, &in, NULL);
	}
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
