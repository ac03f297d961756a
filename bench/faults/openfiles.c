// openfiles SCANNERS: an inventory agent lists the open files of all processes without a pause, as
// lsof(8) does: /proc/PID/fd and /proc/PID/fdinfo, proc(5).
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static long process(const char *pid) {
	char path[600], text[4096];
	long files = 0;
	struct dirent *e;
	snprintf(path, sizeof path, "/proc/%s/fd", pid);
	DIR *d = opendir(path);
	if (!d) return 0;
	while ((e = readdir(d))) {
		if (e->d_name[0] == '.') continue;
		if (readlinkat(dirfd(d), e->d_name, text, sizeof text) > 0) files++;
		snprintf(path, sizeof path, "/proc/%s/fdinfo/%s", pid, e->d_name);
		int fd = open(path, O_RDONLY);
		if (fd >= 0) {
			if (read(fd, text, sizeof text) < 0) files--;
			close(fd);
		}
	}
	closedir(d);
	return files;
}

int main(int argc, char **argv) {
	long scanners = argc > 1 ? atol(argv[1]) : 0;
	if (scanners < 1 || scanners > 16) { fprintf(stderr, "usage: openfiles SCANNERS\n"); return 2; }
	if (process("self") < 1) { perror("/proc/self/fd"); return 1; }
	printf("ready\n");
	fflush(stdout);
	for (long i = 1; i < scanners; i++)
		if (fork() == 0) break;
	for (;;) {
		DIR *d = opendir("/proc");
		struct dirent *e;
		while (d && (e = readdir(d)))
			if (e->d_name[0] >= '1' && e->d_name[0] <= '9') process(e->d_name);
		if (d) closedir(d);
	}
}
