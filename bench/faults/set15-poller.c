// poller FILES THREADS: a development server that looks for changed files by asking for the state of every file, without a pause.
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
static void *look(void *p) {
	char n[600]; struct stat s; struct dirent *e;
	for (;;) for (int d = 0; d < 20; d++) {
		snprintf(n, sizeof n, "/data/app/%d", d);
		DIR *dir = opendir(n);
		if (!dir) { perror(n); exit(1); }
		while ((e = readdir(dir))) { snprintf(n, sizeof n, "/data/app/%d/%s", d, e->d_name); stat(n, &s); }
		closedir(dir);
	}
	return p;
}
int main(int argc, char **argv) {
	char n[64];
	if (argc < 3) return 2;
	mkdir("/data/app", 0700);
	for (int i = 0; i < atoi(argv[1]); i++) {
		snprintf(n, sizeof n, "/data/app/%d", i % 20);
		if (i < 20) mkdir(n, 0700);
		snprintf(n, sizeof n, "/data/app/%d/module-%d.js", i % 20, i);
		int fd = open(n, O_CREAT | O_WRONLY, 0600);
		if (fd < 0) { perror(n); return 1; }
		if (write(fd, "x\n", 2) < 0) return 1;
		close(fd);
	}
	for (int i = 0; i < atoi(argv[2]); i++) { pthread_t t; pthread_create(&t, NULL, look, NULL); }
	printf("ready\n"); fflush(stdout);
	pause();
	return 0;
}
