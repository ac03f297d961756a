/* An editor's server: THREADS threads list, read and search all files of the project again and again. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[256];

static void *search(void *arg) {
	char path[600], buf[16384];
	(void)arg;
	for (;;) {
		for (int d = 0; d < 100; d++) {
			snprintf(path, sizeof path, "%s/pkg%d", root, d);
			DIR *dir = opendir(path);
			if (!dir) continue;
			struct dirent *e;
			while ((e = readdir(dir))) {
				if (e->d_name[0] == '.') continue;
				char f[900];
				struct stat s;
				snprintf(f, sizeof f, "%s/%s", path, e->d_name);
				if (lstat(f, &s)) continue;
				int fd = open(f, O_RDONLY);
				if (fd < 0) continue;
				ssize_t n = read(fd, buf, sizeof buf);
				if (n > 0 && memmem(buf, n, "package.json5", 13)) puts(f);
				close(fd);
			}
			closedir(dir);
		}
	}
	return 0;
}

int main(int argc, char **argv) {
	long threads = argc > 1 ? atol(argv[1]) : 4, files = argc > 2 ? atol(argv[2]) : 100;
	static char text[3000];
	char path[600];
	snprintf(root, sizeof root, "%s/project-%d", access("/data", W_OK) ? "/tmp" : "/data", getpid());
	mkdir(root, 0700);
	for (size_t i = 0; i < sizeof text; i++) text[i] = i % 60 ? 'a' + i * 7 % 26 : '\n';
	for (int d = 0; d < 100; d++) {
		snprintf(path, sizeof path, "%s/pkg%d", root, d);
		mkdir(path, 0700);
		for (int i = 0; i < files; i++) {
			snprintf(path, sizeof path, "%s/pkg%d/module%d.ts", root, d, i);
			int fd = open(path, O_WRONLY | O_CREAT, 0600);
			if (fd < 0 || write(fd, text, sizeof text) < 0) { perror(path); return 1; }
			close(fd);
		}
	}
	pthread_t t;
	for (long i = 0; i < threads; i++) pthread_create(&t, 0, search, 0);
	sleep(1);
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
