// A virus scanner outside of the containers: allows each open(2) in a container only after a scan of
// 3 ms, one after another (fanotify_mark(2), FAN_OPEN_PERM). It answers for other processes at once.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/stat.h>
#include <unistd.h>

static int contained(int pid) { // in another PID namespace
	static struct stat own;
	struct stat s;
	char n[64];
	if (!own.st_ino && stat("/proc/self/ns/pid", &own)) return 0;
	snprintf(n, sizeof n, "/proc/%d/ns/pid", pid);
	return stat(n, &s) == 0 && s.st_ino != own.st_ino;
}

int main(int argc, char **argv) {
	char buf[65536] __attribute__((aligned(8)));
	int fd = fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY | O_LARGEFILE | O_CLOEXEC);
	if (fd < 0) { perror("fanotify_init"); return 1; }
	if (fanotify_mark(fd, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, FAN_OPEN_PERM, AT_FDCWD, argc > 1 ? argv[1] : "/")) { perror("fanotify_mark"); return 1; }
	if (write(1, "ready\n", 6) < 0) return 1;
	for (;;) {
		ssize_t n = read(fd, buf, sizeof buf);
		if (n < 0) { perror("read"); return 1; }
		for (struct fanotify_event_metadata *e = (void *)buf; FAN_EVENT_OK(e, n); e = FAN_EVENT_NEXT(e, n)) {
			struct fanotify_response r = {.fd = e->fd, .response = FAN_ALLOW};
			if (e->fd < 0) continue;
			if (contained(e->pid)) usleep(3000);
			if (e->mask & FAN_OPEN_PERM) { if (write(fd, &r, sizeof r) < 0) perror("answer"); }
			close(e->fd);
		}
	}
}
