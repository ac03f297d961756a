/* A package installer: THREADS threads write small files, flush each to the disk and give it its name. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[200];

static void *install(void *a) {
	static char text[16384];
	char tmp[400], name[400];
	for (long k = 0;; k++) {
		snprintf(tmp, sizeof tmp, "%s/.new-%ld", root, (long)a);
		snprintf(name, sizeof name, "%s/m%ld-%ld.js", root, (long)a, k % 500);
		int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC, 0600);
		if (fd < 0 || write(fd, text, 1000 + k * 37 % 15000) < 0) { perror(tmp); exit(1); }
		fsync(fd);
		close(fd);
		rename(tmp, name);
	}
	return 0;
}

int main(int argc, char **argv) {
	long threads = argc > 1 ? atol(argv[1]) : 8;
	snprintf(root, sizeof root, "%s/modules-%d", access("/data", W_OK) ? "/var/tmp" : "/data", getpid());
	mkdir(root, 0700);
	pthread_t t;
	for (long i = 0; i < threads; i++) pthread_create(&t, 0, install, (void *)i);
	sleep(2);
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
