/* A scan of the host's files: THREADS threads read the programs of /usr and look for signatures in them. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *names[20000];
static int count;
static long threads = 4;
static volatile uint64_t found;

static int note(const char *p, const struct stat *s, int type, struct FTW *f) {
	(void)f;
	if (type == FTW_F && S_ISREG(s->st_mode) && s->st_size > 4096 && s->st_size < 20 << 20) names[count++] = strdup(p);
	return count >= 2500;
}

static void *scan(void *a) {
	unsigned char *buf = malloc(1 << 20);
	for (long k = (long)a;; k += threads) {
		int fd = open(names[k % count], O_RDONLY);
		if (fd < 0) continue;
		ssize_t n;
		while ((n = read(fd, buf, 1 << 20)) > 0)
			for (int round = 0; round < 6; round++) {
				uint64_t state = round + 1;
				for (ssize_t i = 0; i < n; i++) {
					state = state * 31 + buf[i];
					if ((state & 0xffffff) == 0x4d5a90) found++;
				}
			}
		close(fd);
	}
	return 0;
}

int main(int argc, char **argv) {
	if (argc > 1) threads = atol(argv[1]);
	nftw("/usr", note, 30, FTW_PHYS | FTW_MOUNT);
	if (!count) { puts("nothing to scan"); return 1; }
	pthread_t t;
	for (long i = 0; i < threads; i++) pthread_create(&t, 0, scan, (void *)i);
	sleep(1);
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
