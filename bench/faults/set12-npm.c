// set12-npm: a CI job that installs packages: three threads unpack 3000 small files each into new directories, flush the last of
// each package, and remove the tree again, over and over.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
static char buf[4096];
static void *install(void *p) {
	char d[96], b[128];
	for (;;) for (int undo = 0; undo < 2; undo++) for (int i = 0; i < 3000; i++) {
		snprintf(d, sizeof d, "/data/ci-%ld-%d", (long)p, i / 25);
		snprintf(b, sizeof b, "%s/module-%d.js", d, i);
		if (undo) { unlink(b); if (i % 25 == 24) rmdir(d); continue; }
		if (i % 25 == 0) mkdir(d, 0700);
		int fd = open(b, O_WRONLY | O_CREAT, 0600);
		if (fd < 0) continue;
		if (write(fd, buf, 500 + i) < 0) perror("write");
		if (i % 25 == 24) fsync(fd);
		close(fd);
	}
	return NULL;
}
int main(void) {
	for (long i = 0; i < 3; i++) { pthread_t t; pthread_create(&t, NULL, install, (void *)i); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
