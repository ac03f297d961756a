/* A scan of the host: four threads compare the files of /usr/bin with 64 signatures, again and again. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void *run(void *a) {
	unsigned char *b = malloc(1 << 20);
	volatile unsigned long found = 0;
	char p[400];
	struct dirent *e;
	long skip = (long)a * 37, n = 0;
	if (!b) return 0;
	for (;;) {
		DIR *o = opendir("/usr/bin");
		while (o && (e = readdir(o))) {
			if (n++ < skip || e->d_type != DT_REG) continue;
			snprintf(p, sizeof p, "/usr/bin/%s", e->d_name);
			int fd = open(p, O_RDONLY);
			if (fd < 0) continue;
			ssize_t l = read(fd, b, 1 << 20);
			close(fd);
			for (int s = 0; s < 64; s++) {
				unsigned long h = 1469598103934665603ul + s;
				for (ssize_t i = 0; i < l; i += 4) h = (h ^ b[i]) * 1099511628211ul;
				if (h == 42) found++;
			}
		}
		if (o) closedir(o);
		n = skip;
	}
	return 0;
}
int main(void) {
	pthread_t t;
	for (long i = 0; i < 4; i++) pthread_create(&t, 0, run, (void *)i);
	sleep(1);
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
