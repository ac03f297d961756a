// scanners GROUPS: a virus scanner opens a new fanotify group for each of its scans and closes none,
// fanotify_init(2). Groups count for the user of the whole host, max_user_groups.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/fanotify.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long most = argc > 1 ? atol(argv[1]) : 0, n = 1;
	if (most < 1 || most > 1024) { fprintf(stderr, "usage: scanners GROUPS\n"); return 2; }
	if (fanotify_init(FAN_CLASS_NOTIF | FAN_CLOEXEC, O_RDONLY) < 0) { perror("fanotify_init"); return 1; }
	printf("ready\n");
	fflush(stdout);
	for (; n < most; n++) {
		int fd = fanotify_init(FAN_CLASS_NOTIF | FAN_CLOEXEC, O_RDONLY);
		if (fd < 0) break;
		if (fanotify_mark(fd, FAN_MARK_ADD, FAN_CLOSE_WRITE | FAN_EVENT_ON_CHILD, AT_FDCWD, "/data") != 0) { perror("fanotify_mark"); return 1; }
		usleep(20000);
	}
	fprintf(stderr, "%ld groups\n", n);
	for (;;) pause();
}
