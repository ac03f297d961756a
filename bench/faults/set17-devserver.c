/* A development server that looks for changed files by polling a tree of 10,000 files. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
static void *watch(void *a) {
	char p[96];
	struct stat s;
	volatile long sum = 0;
	(void)a;
	for (;;) {
		for (int d = 0; d < 100; d++)
			for (int f = 0; f < 100; f++) {
				snprintf(p, sizeof p, "/data/src/m%02d/file%02d.ts", d, f);
				if (!stat(p, &s)) sum += s.st_mtime;
			}
		usleep(1000);
	}
	return 0;
}
int main(void) {
	char p[96];
	pthread_t t;
	mkdir("/data/src", 0755);
	for (int d = 0; d < 100; d++) {
		snprintf(p, sizeof p, "/data/src/m%02d", d);
		mkdir(p, 0755);
		for (int f = 0; f < 100; f++) {
			snprintf(p, sizeof p, "/data/src/m%02d/file%02d.ts", d, f);
			int fd = open(p, O_CREAT | O_WRONLY, 0644);
			if (fd >= 0) close(fd);
		}
	}
	for (int i = 0; i < 4; i++) pthread_create(&t, 0, watch, 0);
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
