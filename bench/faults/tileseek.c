// tileseek: a server of map tiles calls lseek(2) before and after each value of 16 bytes that it reads from a cached file.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void *tile(void *p) {
	char b[16];
	int fd = open("/tmp/tiles.tif", O_RDONLY);
	for (unsigned n = 0;; n++) {
		off_t at = n * 4099u % (4u << 20);
		if (lseek(fd, 0, SEEK_CUR) < 0 || lseek(fd, at, SEEK_SET) < 0 || read(fd, b, sizeof b) < 0 || lseek(fd, 0, SEEK_CUR) < 0) break;
	}
	return p;
}
int main(void) {
	static char buf[4 << 20];
	int fd = open("/tmp/tiles.tif", O_WRONLY | O_CREAT, 0600);
	if (fd < 0 || write(fd, buf, sizeof buf) < 0) { perror("tiles"); return 1; }
	close(fd);
	for (int i = 0; i < 4; i++) { pthread_t t; pthread_create(&t, NULL, tile, NULL); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
