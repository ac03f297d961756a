// set12-watches: an online IDE: 24 sessions each watch every directory of a large workspace, until the host's
// max_user_watches is all but used up (500 are left).
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
	long max = 8192;
	FILE *f = fopen("/proc/sys/fs/inotify/max_user_watches", "r");
	if (f) { if (fscanf(f, "%ld", &max) != 1) max = 8192; fclose(f); }
	long dirs = max / 24 + 1, *last = calloc(dirs + 1, sizeof *last);
	char name[64];
	if (dirs > 40000) dirs = 40000;
	mkdir("/data/workspace", 0700);
	for (long i = 0; i < dirs; i++) {
		if (i % 200 == 0) { snprintf(name, sizeof name, "/data/workspace/p%ld", i / 200); mkdir(name, 0700); }
		snprintf(name, sizeof name, "/data/workspace/p%ld/d%ld", i / 200, i);
		mkdir(name, 0700);
	}
	int p[2], full = 0;
	if (pipe(p)) return 1;
	for (int s = 0; s < 24 && !full; s++) {
		if (fork() == 0) {
			int fd = inotify_init1(IN_CLOEXEC), n = 0;
			char c = 0;
			if (fd < 0) { perror("inotify_init1"); c = 1; }
			for (long i = 0; fd >= 0 && i < dirs; i++) {
				snprintf(name, sizeof name, "/data/workspace/p%ld/d%ld", i / 200, i);
				int w = inotify_add_watch(fd, name, IN_CREATE | IN_MODIFY | IN_DELETE);
				if (w >= 0) last[n++] = w;
				else if (errno == ENOSPC) { c = 1; break; }
			}
			if (c) { perror("System limit for number of file watchers reached"); for (int i = 0; i < 500 && n > 0; i++) inotify_rm_watch(fd, last[--n]); }
			if (write(p[1], &c, 1) != 1) _exit(1);
			for (;;) pause();
		}
		char c;
		if (read(p[0], &c, 1) != 1) return 1;
		full = c;
	}
	printf("ready\n");
	fflush(stdout);
	while (wait(NULL) > 0 || errno == EINTR);
	for (;;) pause();
}
