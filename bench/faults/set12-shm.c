// set12-shm: a database whose parallel workers fill /dev/shm, 64 MiB in a container; further queries fail with ENOSPC.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(void) {
	int n = 0, failed = 0;
	for (int size = 4 << 20; n < 256;) { // at most 256 segments of 4 MiB, then smaller ones
		char name[64];
		snprintf(name, sizeof name, "/dev/shm/PostgreSQL.%d", n);
		int fd = open(name, O_RDWR | O_CREAT, 0600);
		if (fd < 0) return 1;
		errno = posix_fallocate(fd, 0, size);
		close(fd);
		if (errno) { unlink(name); if (size <= 1 << 17) break; size /= 2; }
		else n++;
		if (n >= 64 && size == 4 << 20) break;
	}
	printf("ready\n");
	fflush(stdout);
	for (;; failed++) {
		int fd = open("/dev/shm/PostgreSQL.next", O_RDWR | O_CREAT, 0600);
		errno = fd < 0 ? errno : posix_fallocate(fd, 0, 8 << 20);
		if (errno && failed % 20 == 0) { printf("ERROR: could not resize shared memory segment to 8388608 bytes: %s\n", strerror(errno)); fflush(stdout); }
		if (fd >= 0) close(fd);
		unlink("/dev/shm/PostgreSQL.next");
		usleep(200000);
	}
}
