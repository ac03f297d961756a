// set13-onaccess: an antivirus of the host that scans each file before it may be opened (fanotify(7), FAN_OPEN_PERM), one after
// the other, 15 ms each. It watches only /data of the container that runs "set13-victim files".
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fanotify.h>
#include <unistd.h>

static int victim(void) {
	DIR *d = opendir("/proc");
	int found = 0;
	for (struct dirent *e; d && !found && (e = readdir(d));) {
		char name[300], b[256] = {0};
		if (!isdigit((unsigned char)*e->d_name)) continue;
		snprintf(name, sizeof name, "/proc/%s/cmdline", e->d_name);
		int fd = open(name, O_RDONLY);
		if (fd < 0) continue;
		ssize_t n = read(fd, b, sizeof b - 1);
		close(fd);
		char *base = strrchr(b, '/');
		base = base ? base + 1 : b;
		if (n > 0 && !strcmp(base, "set13-victim") && !strcmp(b + strlen(b) + 1, "files")) found = atoi(e->d_name);
	}
	if (d) closedir(d);
	return found;
}
int main(void) {
	char name[64];
	static char b[65536] __attribute__((aligned(16)));
	static char data[65536];
	int pid, f = fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY | O_LARGEFILE);
	if (f < 0) { perror("fanotify_init"); return 1; }
	while (!(pid = victim())) usleep(300000);
	snprintf(name, sizeof name, "/proc/%d/root/data", pid);
	if (fanotify_mark(f, FAN_MARK_ADD, FAN_OPEN_PERM | FAN_EVENT_ON_CHILD, AT_FDCWD, name)) { perror("fanotify_mark"); return 1; }
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		ssize_t n = read(f, b, sizeof b);
		if (n < 0) { perror("read"); return 1; }
		for (struct fanotify_event_metadata *m = (void *)b; FAN_EVENT_OK(m, n); m = FAN_EVENT_NEXT(m, n)) {
			if (m->fd < 0) continue;
			unsigned long sum = 0;
			ssize_t k = read(m->fd, data, sizeof data);
			for (int j = 0; j < 40; j++) for (ssize_t i = 0; i < k; i++) sum = sum * 31 + (unsigned char)data[i];
			usleep(sum ? 13000 : 14000);
			struct fanotify_response r = {.fd = m->fd, .response = FAN_ALLOW};
			if (write(f, &r, sizeof r) < 0) perror("write");
			close(m->fd);
		}
	}
}
