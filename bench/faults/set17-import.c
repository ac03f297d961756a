/* Imports rows in bulk: ARG writers, each with 2 MiB in one go and then fdatasync, in a ring of 256 MiB. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void *run(void *a) {
	char p[64], *b = malloc(2 << 20);
	snprintf(p, sizeof p, "/data/table-%ld", (long)a);
	int fd = open(p, O_CREAT | O_RDWR | O_TRUNC, 0644);
	if (fd < 0 || !b) { perror(p); return 0; }
	for (long n = 0;; n++) {
		memset(b, (int)n + 1, 2 << 20);
		if (pwrite(fd, b, 2 << 20, (n % 128) * (2l << 20)) < 0) usleep(100000);
		fdatasync(fd);
	}
	return 0;
}
int main(int c, char **v) {
	pthread_t t;
	int n = c > 1 ? atoi(v[1]) : 3;
	for (long i = 0; i < n && i < 4; i++) pthread_create(&t, 0, run, (void *)i);
	sleep(1);
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
