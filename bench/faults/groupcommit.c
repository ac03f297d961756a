// groupcommit WRITERS EVERY_MS: a database gathers the records of its WRITERS and flushes its log once for all of them.
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t done = PTHREAD_COND_INITIALIZER;
static long waiting, round_no;
static void *writer(void *p) {
	for (;;) {
		pthread_mutex_lock(&lock);
		waiting++;
		for (long r = round_no; r == round_no;) pthread_cond_wait(&done, &lock);
		pthread_mutex_unlock(&lock);
	}
	return p;
}
int main(int argc, char **argv) {
	static char b[65536];
	pthread_t t;
	if (argc < 3) return 2;
	int fd = open("/data/redo.log", O_RDWR | O_CREAT, 0600);
	if (fd < 0) { perror("/data/redo.log"); return 1; }
	for (int i = 0; i < 128; i++) if (pwrite(fd, b, sizeof b, (off_t)i * sizeof b) < 0) return 1;
	fsync(fd);
	for (int i = 0; i < atoi(argv[1]) && i < 64; i++) pthread_create(&t, NULL, writer, NULL);
	printf("ready\n");
	fflush(stdout);
	for (long n = 0;; n++) {
		usleep(atoi(argv[2]) * 1000);
		if (pwrite(fd, b, 32768, (off_t)(n % 128) * sizeof b) < 0) return 1;
		fdatasync(fd);
		pthread_mutex_lock(&lock);
		waiting = 0; round_no++;
		pthread_cond_broadcast(&done);
		pthread_mutex_unlock(&lock);
	}
}
