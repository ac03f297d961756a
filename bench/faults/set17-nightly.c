/* The nightly backup of the host: writes an archive of 384 MiB with two writers and reads it again past the page cache. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static char dir[] = "/var/tmp/set17-nightly.XXXXXX";
static void *run(void *a) {
	char p[128], *b;
	if (posix_memalign((void **)&b, 4096, 4 << 20)) return 0;
	snprintf(p, sizeof p, "%s/part-%ld", dir, (long)a);
	int fd = open(p, O_CREAT | O_RDWR | O_TRUNC, 0600), rd = open(p, O_RDONLY | O_DIRECT);
	if (fd < 0) { perror(p); return 0; }
	for (long n = 0;; n++) {
		memset(b, (int)n + 1, 4 << 20);
		if (pwrite(fd, b, 4 << 20, (n % 48) * (4l << 20)) < 0) usleep(100000);
		fdatasync(fd);
		if (rd >= 0 && pread(rd, b, 4 << 20, ((n + 7) % 48) * (4l << 20)) < 0) usleep(1000);
	}
	return 0;
}
int main(void) {
	pthread_t t;
	if (!mkdtemp(dir)) { perror(dir); return 1; }
	for (long i = 0; i < 2; i++) pthread_create(&t, 0, run, (void *)i);
	sleep(2);
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
