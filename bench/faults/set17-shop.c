/* A small healthy service: 50 requests a second, each computes a little, writes a line and reads it. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
	volatile double x = 1;
	char b[128];
	puts("ready"); fflush(stdout);
	for (long n = 0;; n++) {
		for (int i = 0; i < 100000; i++) x = x * 1.0000001 + 0.5;
		int fd = open("/tmp/shop-line", O_CREAT | O_RDWR | O_TRUNC, 0644);
		if (fd >= 0) {
			int l = snprintf(b, sizeof b, "request %ld\n", n);
			if (write(fd, b, l) < 0) perror("write");
			if (pread(fd, b, sizeof b, 0) < 0) perror("read");
			close(fd);
		}
		usleep(20000);
	}
}
