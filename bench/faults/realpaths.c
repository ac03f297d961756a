// realpaths THREADS: an application without a cache of paths asks for each of its 600 classes in each request, lstat(2) of each directory of
// its deep path and readlink(2) of the release's link, as PHP with open_basedir does.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define DEEP "/tmp/app/releases/20240101/vendor/acme/framework/src/components/http/kernel/event"
static void *request(void *p) {
	struct stat s;
	char n[200], t[200], path[200];
	for (unsigned k = 0;; k = (k + 1) % 600) {
		snprintf(path, sizeof path, DEEP "/Class%u.php", k);
		for (char *c = strchr(path + 1, '/'); c; c = strchr(c + 1, '/')) {
			memcpy(n, path, c - path);
			n[c - path] = 0;
			lstat(n, &s);
		}
		lstat(path, &s);
		if (readlink("/tmp/app/current", t, sizeof t) < 0) perror("readlink");
	}
	return p;
}
int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 4;
	char d[200];
	for (const char *c = strchr(DEEP + 5, '/');; c = strchr(c + 1, '/')) {
		size_t len = c ? (size_t)(c - DEEP) : strlen(DEEP);
		memcpy(d, DEEP, len);
		d[len] = 0;
		mkdir(d, 0700);
		if (!c) break;
	}
	unlink("/tmp/app/current");
	if (symlink("/tmp/app/releases/20240101", "/tmp/app/current")) perror("symlink");
	for (int i = 0; i < 600; i++) { snprintf(d, sizeof d, DEEP "/Class%d.php", i); int f = open(d, O_WRONLY | O_CREAT, 0600); if (f < 0) { perror(d); return 1; } close(f); }
	for (int i = 0; i < n; i++) { pthread_t t; pthread_create(&t, NULL, request, NULL); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
