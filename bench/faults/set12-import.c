// set12-import: a restore of a dump: two threads write new files of 64 MiB through the page cache as fast as they can, flush
// each (a checkpoint), and drop the old ones (at most 640 MiB exist).
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static char buf[1 << 20];
static void *load(void *p) {
	char name[64];
	for (unsigned n = 0;; n++) {
		snprintf(name, sizeof name, "/data/table-%ld-%u", (long)p, n);
		int fd = open(name, O_WRONLY | O_CREAT, 0600);
		if (fd < 0) exit(1);
		for (int i = 0; i < 64; i++) if (write(fd, buf, sizeof buf) < 0) exit(1);
		fdatasync(fd);
		close(fd);
		if (n >= 4) { snprintf(name, sizeof name, "/data/table-%ld-%u", (long)p, n - 4); unlink(name); }
	}
	return NULL;
}
int main(void) {
	memset(buf, 3, sizeof buf);
	for (long i = 0; i < 2; i++) { pthread_t t; pthread_create(&t, NULL, load, (void *)i); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
