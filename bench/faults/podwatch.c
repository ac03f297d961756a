// podwatch FILES: a service reloads each of its FILES of settings at a change, and its framework makes an inotify instance for each.
// What it cannot get it tries again every two seconds.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <unistd.h>
int main(int argc, char **argv) {
	int want = argc > 1 ? atoi(argv[1]) : 15, have = 0;
	for (int said = 0;; sleep(2)) {
		while (have < want) {
			int i = inotify_init1(IN_CLOEXEC);
			if (i < 0) { perror("the limit on the number of inotify instances has been reached"); break; }
			inotify_add_watch(i, "/tmp", IN_MODIFY);
			have++;
		}
		if (!said) { said = 1; printf("ready\n"); fflush(stdout); }
	}
}
