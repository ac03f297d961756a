/* Copies large layers: two writers fill files of 512 MiB in the page cache without a sync, again and again. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static void *run(void *a) {
	static char b[1 << 20];
	char p[64];
	snprintf(p, sizeof p, "/data/layer-%ld", (long)a);
	int fd = open(p, O_CREAT | O_RDWR | O_TRUNC, 0644);
	if (fd < 0) { perror(p); return 0; }
	for (long n = 0;; n++)
		if (pwrite(fd, b, sizeof b, (n % 512) << 20) < 0) usleep(100000);
	return 0;
}
int main(void) {
	pthread_t t;
	for (long i = 0; i < 2; i++) pthread_create(&t, 0, run, (void *)i);
	sleep(4);
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
