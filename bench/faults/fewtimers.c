// fewtimers: a server has a timer(2) for each of 500 sessions, of which a few expire each second, and it takes the signals.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

int main(void) {
	sigset_t s;
	prctl(PR_SET_NAME, "session-server");
	sigemptyset(&s);
	sigaddset(&s, SIGRTMIN);
	sigprocmask(SIG_BLOCK, &s, NULL);
	for (int i = 0; i < 500; i++) {
		timer_t t;
		struct sigevent e;
		struct itimerspec in = {{30, 0}, {1 + i % 30, i * 1000000}};
		memset(&e, 0, sizeof e);
		e.sigev_notify = SIGEV_SIGNAL;
		e.sigev_signo = SIGRTMIN;
		if (timer_create(CLOCK_MONOTONIC, &e, &t)) { perror("timer_create"); return 1; }
		timer_settime(t, 0, &in, NULL);
	}
	printf("ready\n");
	fflush(stdout);
	for (siginfo_t i;;) { sigwaitinfo(&s, &i); for (volatile int k = 0; k < 20000; k++); }
}
