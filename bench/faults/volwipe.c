// volwipe: a provisioner of volumes overwrites each released volume of 160 MiB three times, as shred(1) does, with a
// flush of each pass, before it makes the next one.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char buf[1 << 20];
int main(void) {
	int told = 0;
	for (;;) {
		int fd = open("/data/released-volume", O_RDWR | O_CREAT, 0600);
		if (fd < 0 || posix_fallocate(fd, 0, 160L << 20)) { perror("volume"); return 1; }
		if (!told++) { printf("ready\n"); fflush(stdout); }
		for (int pass = 0; pass < 3; pass++) {
			memset(buf, pass == 2 ? 0 : (int)random(), sizeof buf);
			for (int i = 0; i < 160; i++) {
				if (pwrite(fd, buf, sizeof buf, (off_t)i << 20) < 0) { perror("write"); return 1; }
				if (i % 16 == 15) fdatasync(fd);
			}
		}
		close(fd);
		unlink("/data/released-volume");
	}
}
