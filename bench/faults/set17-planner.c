/* A database: parallel queries keep segments of 1 MiB in /dev/shm up to 95 % of it; each second one more is asked for. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>
int main(void) {
	static char b[1 << 20];
	char p[64];
	struct statvfs s;
	memset(b, 's', sizeof b);
	for (int n = 0; n < 512; n++) {
		if (statvfs("/dev/shm", &s) || s.f_bavail < s.f_blocks / 20 + (1 << 20) / s.f_frsize) break;
		snprintf(p, sizeof p, "/dev/shm/PostgreSQL.%d", 204000 + n);
		int fd = open(p, O_CREAT | O_RDWR, 0600);
		if (fd < 0 || write(fd, b, sizeof b) < 0) break;
		close(fd);
	}
	puts("ready"); fflush(stdout);
	for (;;) {
		int fd = open("/dev/shm/PostgreSQL.query", O_CREAT | O_RDWR | O_TRUNC, 0600);
		for (int i = 0; fd >= 0 && i < 16; i++)
			if (write(fd, b, sizeof b) != sizeof b) {
				fprintf(stderr, "ERROR: could not resize shared memory segment to 16777216 bytes: %s\n", strerror(ENOSPC));
				break;
			}
		if (fd >= 0) close(fd);
		unlink("/dev/shm/PostgreSQL.query");
		sleep(1);
	}
}
