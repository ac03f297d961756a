// sync FREE: watches each project with an inotify instance of its own, and leaves only FREE of those of its user.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <unistd.h>
int main(int argc, char **argv) {
	static int fds[20000];
	struct rlimit r;
	getrlimit(RLIMIT_NOFILE, &r); r.rlim_cur = r.rlim_max; setrlimit(RLIMIT_NOFILE, &r);
	int n = 0, left = argc > 1 ? atoi(argv[1]) : 4;
	while (n < 20000 && (fds[n] = inotify_init1(IN_CLOEXEC)) >= 0) { inotify_add_watch(fds[n], "/tmp", IN_CREATE | IN_DELETE_SELF); n++; }
	for (int i = 0; i < left && n > 0; i++) close(fds[--n]);
	printf("ready\n%d projects watched\n", n); fflush(stdout);
	for (;;) { // each new project needs an instance; most of the time some are left, for a moment none
		sleep(2);
		int more[64], m = 0;
		while (m < 64 && (more[m] = inotify_init1(IN_CLOEXEC)) >= 0) m++;
		if (m < 64) { printf("cannot watch project: %s\n", errno == EMFILE ? "Too many open files" : "error"); fflush(stdout); }
		usleep(200000);
		while (m > 0) close(more[--m]);
	}
}
