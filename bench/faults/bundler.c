// bundler DIRECTORIES: a development server that watches DIRECTORIES directories with inotify(7). Each 5 s a branch is switched:
// a file in each directory is replaced, and the server reads the events and the files. Far below all limits.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 300, in = inotify_init1(IN_NONBLOCK);
	char name[64], other[80];
	static char b[65536];
	if (in < 0 || n > 2000) { perror("inotify_init1"); return 1; }
	for (int i = 0; i < n; i++) {
		snprintf(name, sizeof name, "/tmp/module-%d", i);
		mkdir(name, 0700);
		if (inotify_add_watch(in, name, IN_CLOSE_WRITE | IN_MOVED_TO | IN_DELETE) < 0) { perror("inotify_add_watch"); return 1; }
	}
	printf("ready\n");
	fflush(stdout);
	for (;; sleep(5)) {
		for (int i = 0; i < n; i++) {
			snprintf(name, sizeof name, "/tmp/module-%d/index.js", i);
			snprintf(other, sizeof other, "%s.new", name);
			int fd = open(other, O_WRONLY | O_CREAT | O_TRUNC, 0600);
			if (fd < 0 || write(fd, b, 2000) < 0) { perror("write"); return 1; }
			close(fd);
			rename(other, name);
			while (read(in, b, sizeof b) > 0);
			if ((fd = open(name, O_RDONLY)) >= 0) { while (read(fd, b, sizeof b) > 0); close(fd); }
			usleep(1000);
		}
	}
}
