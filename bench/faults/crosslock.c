// crosslock: one job of a deployment tool has locked the state and wants the cache, another has locked the cache and wants
// the state, flock(2). Both wait for ever, and forty more jobs wait behind them.
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

static void hold(const char *first, const char *second, int us) {
	int a = open(first, O_RDWR | O_CREAT, 0600), b = open(second, O_RDWR | O_CREAT, 0600);
	if (a < 0 || b < 0 || flock(a, LOCK_EX)) _exit(1);
	usleep(us);
	flock(b, LOCK_EX);
	_exit(0);
}
int main(void) {
	const char *s = "/data/state.lock", *c = "/data/cache.lock";
	if (fork() == 0) hold(s, c, 300000);
	if (fork() == 0) hold(c, s, 300000);
	usleep(600000);
	for (int i = 0; i < 40; i++) if (fork() == 0) { if (i % 2) hold(s, c, 0); else hold(c, s, 0); }
	usleep(200000);
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
