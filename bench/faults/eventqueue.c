// eventqueue: the file watcher of a development server hangs and does not read its inotify(7) events, while a build changes
// files. 97 % of fs.inotify.max_queued_events are in its queue; above that, events are lost (IN_Q_OVERFLOW).
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

int main(void) {
	long max = 16384;
	FILE *f = fopen("/proc/sys/fs/inotify/max_queued_events", "r");
	if (f) { if (fscanf(f, "%ld", &max) != 1) max = 16384; fclose(f); }
	if (max > 200000) max = 200000; // bounded
	prctl(PR_SET_NAME, "watchman");
	mkdir("/data/src", 0700);
	int w = inotify_init1(IN_CLOEXEC), fd[2];
	if (w < 0 || inotify_add_watch(w, "/data/src", IN_MODIFY) < 0) { perror("inotify"); return 1; }
	fd[0] = open("/data/src/bundle-with-a-long-name-0.js", O_RDWR | O_CREAT, 0600);
	fd[1] = open("/data/src/bundle-with-a-long-name-1.js", O_RDWR | O_CREAT, 0600);
	if (fd[0] < 0 || fd[1] < 0) { perror("open"); return 1; }
	long n = 0;
	for (; n < max / 100 * 97; n++) if (pwrite(fd[n % 2], "x", 1, n % 4096) < 0) { perror("write"); return 1; }
	printf("ready\n");
	fflush(stdout);
	for (;; n++) { sleep(1); if (n < max / 1000 * 995 && pwrite(fd[n % 2], "x", 1, 0) < 0) return 1; }
}
