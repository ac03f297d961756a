// multipart: an object store keeps the parts of uploads that clients have given up: 8 MiB more on the disk each second.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

static char part[1 << 20];
int main(void) {
	prctl(PR_SET_NAME, "minio");
	mkdir("/data/multipart", 0700);
	memset(part, 7, sizeof part);
	printf("ready\n");
	fflush(stdout);
	for (int n = 0;; n++) {
		char b[64];
		snprintf(b, sizeof b, "/data/multipart/part.%d", n);
		int fd = n < 200 ? open(b, O_WRONLY | O_CREAT, 0600) : -1; // bounded: 800 MiB
		for (int i = 0; fd >= 0 && i < 4; i++) if (write(fd, part, sizeof part) < 0) return 1;
		if (fd >= 0) close(fd);
		usleep(500000);
	}
}
