// eventbatches: a file synchroniser lets 3,000 inotify(7) events gather for two seconds and then reads them all at once; its
// queue is never fuller than a fifth.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

int main(void) {
	static char b[1 << 16];
	prctl(PR_SET_NAME, "syncthing");
	mkdir("/tmp/share", 0700);
	int w = inotify_init1(IN_NONBLOCK), fd[2];
	if (w < 0 || inotify_add_watch(w, "/tmp/share", IN_MODIFY) < 0) { perror("inotify"); return 1; }
	fd[0] = open("/tmp/share/a", O_RDWR | O_CREAT, 0600);
	fd[1] = open("/tmp/share/b", O_RDWR | O_CREAT, 0600);
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		for (int i = 0; i < 3000; i++) { if (pwrite(fd[i % 2], "x", 1, i) < 0) return 1; if (i % 15 == 14) usleep(10000); }
		while (read(w, b, sizeof b) > 0);
	}
}
