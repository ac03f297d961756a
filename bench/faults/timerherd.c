// 400 workers have the same timer: all wake at each full eighth second and work for 18 ms each, so that the
// host has hundreds of runnable tasks for some seconds and is idle between.
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static double at(clockid_t c) { struct timespec t; clock_gettime(c, &t); return t.tv_sec + t.tv_nsec / 1e9; }
int main(void) {
	for (int i = 0; i < 400; i++) if (fork() == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;) {
			struct timespec t;
			clock_gettime(CLOCK_REALTIME, &t);
			t.tv_sec = (t.tv_sec / 8 + 1) * 8; t.tv_nsec = 0;
			clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &t, NULL);
			for (double e = at(CLOCK_THREAD_CPUTIME_ID) + 0.018; at(CLOCK_THREAD_CPUTIME_ID) < e;) for (volatile int j = 0; j < 1000; j++);
		}
	}
	if (write(1, "ready\n", 6) < 0) return 1;
	for (;;) pause();
}
