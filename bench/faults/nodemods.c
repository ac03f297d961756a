// nodemods PROCESSES FILES: CI jobs unpack FILES small files in directories of ten, flush the layer as an image builder
// does at its end (syncfs(2)), and remove them again.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int argc, char **argv) {
	if (argc < 3) return 2;
	int me = 0, files = atoi(argv[2]), top;
	char d[96], n[128], b[3000];
	if (files > 5000) files = 5000;
	memset(b, 'm', sizeof b);
	printf("ready\n");
	fflush(stdout);
	for (int i = 1; i < atoi(argv[1]) && i < 8; i++) if (fork() == 0) { me = i; break; }
	snprintf(d, sizeof d, "/data/modules-%d", me);
	mkdir(d, 0700);
	top = open(d, O_RDONLY | O_DIRECTORY);
	for (;;) {
		for (int pass = 0; pass < 2; pass++) {
			for (int i = 0; i < files; i++) {
				snprintf(d, sizeof d, "/data/modules-%d/package-%d", me, i / 10);
				snprintf(n, sizeof n, "%s/index-%d.js", d, i % 10);
				if (pass == 0) {
					if (i % 10 == 0) mkdir(d, 0700);
					int fd = open(n, O_WRONLY | O_CREAT | O_TRUNC, 0600);
					if (fd < 0) { perror(n); return 1; }
					if (write(fd, b, sizeof b) < 0) { perror(n); return 1; }
					close(fd);
				} else { unlink(n); if (i % 10 == 9 || i == files - 1) rmdir(d); }
			}
			if (top >= 0) syncfs(top);
		}
	}
}
