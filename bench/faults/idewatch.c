// idewatch PERCENT: the file watchers of 20 editor windows watch each directory and file below node_modules, until the user has
// PERCENT of fs.inotify.max_user_watches, which counts for all containers of the same user.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int argc, char **argv) {
	long max = 8192, have = 0, windows = 20, files;
	char n[64];
	FILE *f = fopen("/proc/sys/fs/inotify/max_user_watches", "r");
	if (!f || fscanf(f, "%ld", &max) != 1) perror("max_user_watches");
	if (f) fclose(f);
	long want = max * (argc > 1 ? atol(argv[1]) : 96) / 100;
	files = want / windows + 1;
	if (files > 25000) files = 25000;
	if (want > files * 40) want = files * 40;
	mkdir("/tmp/node_modules", 0700);
	for (long i = 0; i < files; i++) {
		if (i % 500 == 0) { snprintf(n, sizeof n, "/tmp/node_modules/%ld", i / 500); mkdir(n, 0700); }
		snprintf(n, sizeof n, "/tmp/node_modules/%ld/%ld.js", i / 500, i);
		int d = open(n, O_WRONLY | O_CREAT, 0600);
		if (d < 0) { perror(n); return 1; }
		close(d);
	}
	for (int w = 0; w < 40 && have < want; w++) {
		int in = inotify_init1(IN_NONBLOCK);
		if (in < 0) { perror("inotify_init1"); break; }
		for (long i = 0; i < files && have < want; i++) {
			snprintf(n, sizeof n, "/tmp/node_modules/%ld/%ld.js", i / 500, i);
			if (inotify_add_watch(in, n, IN_MODIFY | IN_DELETE_SELF) < 0) { perror("inotify_add_watch"); want = have; break; }
			have++;
		}
	}
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
