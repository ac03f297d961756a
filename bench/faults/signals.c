// signals PERCENT: a service queues real-time signals that it never takes, sigqueue(3). They count
// for the user of the whole host, getrlimit(2), RLIMIT_SIGPENDING: at the limit root's timers and
// queued signals fail in all containers.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long percent = argc > 1 ? atol(argv[1]) : 0, n = 0;
	struct rlimit r;
	sigset_t blocked;
	if (percent < 1 || percent > 97) { fprintf(stderr, "usage: signals PERCENT\n"); return 2; }
	getrlimit(RLIMIT_SIGPENDING, &r);
	if (r.rlim_cur > 1000000) { fprintf(stderr, "no limit of queued signals\n"); return 1; }
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGRTMIN);
	sigprocmask(SIG_BLOCK, &blocked, NULL);
	printf("ready\n");
	fflush(stdout);
	while (n < (long)r.rlim_cur * percent / 100 && sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 1}) == 0)
		if (++n % 200 == 0) usleep(10000);
	fprintf(stderr, "%ld signals\n", n);
	for (;;) pause();
}
