// set12-polling: a development server whose file watcher polls (CHOKIDAR_USEPOLLING): four threads stat(2) 20000 files of
// node_modules over and over.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#define FILES 20000
static void path(char *b, size_t n, int i) { snprintf(b, n, "/data/node_modules/pkg-%d/index-%d.js", i / 50, i); }
static void *poller(void *p) {
	char b[96];
	struct stat s;
	for (;;) { for (int i = (int)(long)p; i < FILES; i += 4) { path(b, sizeof b, i); stat(b, &s); } usleep(1000); }
	return NULL;
}
int main(void) {
	char b[96];
	mkdir("/data/node_modules", 0700);
	for (int i = 0; i < FILES; i++) {
		if (i % 50 == 0) { snprintf(b, sizeof b, "/data/node_modules/pkg-%d", i / 50); mkdir(b, 0700); }
		path(b, sizeof b, i);
		int fd = open(b, O_WRONLY | O_CREAT, 0600);
		if (fd >= 0) close(fd);
	}
	for (long i = 0; i < 4; i++) { pthread_t t; pthread_create(&t, NULL, poller, (void *)i); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
