/* A development server: opens one watcher after another until the host allows no more, and leaves SPARE. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

int main(int argc, char **argv) {
	int spare = argc > 1 ? atoi(argv[1]) : 3, max = argc > 2 ? atoi(argv[2]) : 2000, fds[2048], n = 0;
	while (n < max && (fds[n] = inotify_init1(IN_CLOEXEC)) >= 0) {
		inotify_add_watch(fds[n], "/tmp", IN_MODIFY);
		inotify_add_watch(fds[n], "/", IN_CREATE);
		n++;
	}
	for (int i = 0; i < spare && n > 0; i++) close(fds[--n]);
	puts("ready"); fflush(stdout);
	for (long k = 0;; k++) {
		int more[64], m = 0;
		while (m < 64 && (more[m] = inotify_init1(IN_CLOEXEC)) >= 0) m++;
		int e = errno;
		while (m > 0) close(more[--m]);
		if (k % 5 == 0) { printf("cannot watch: %s\n", strerror(e)); fflush(stdout); }
		sleep(1);
	}
}
