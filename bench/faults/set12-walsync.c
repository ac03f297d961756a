// set12-walsync THREADS: a database in autocommit mode: each session appends a record of 4 KiB to its log and waits for
// fdatasync(2), without a pause.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void *session(void *p) {
	static char page[4096];
	char name[64];
	snprintf(name, sizeof name, "/data/wal-%ld", (long)p);
	int fd = open(name, O_RDWR | O_CREAT, 0600);
	if (fd < 0) { perror(name); exit(1); }
	for (unsigned long n = 0;; n++) { if (pwrite(fd, page, sizeof page, 4096 * (n % 4096)) < 0) exit(1); fdatasync(fd); }
	return NULL;
}
int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 8;
	for (long i = 0; i < n; i++) { pthread_t t; pthread_create(&t, NULL, session, (void *)i); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
