/* A database with parallel queries: segments in /dev/shm up to PERCENT of its size. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long percent = argc > 1 ? atol(argv[1]) : 95, n = 0;
	static char page[65536];
	struct statvfs s;
	char name[100];
	if (statvfs("/dev/shm", &s)) { perror("/dev/shm"); return 1; }
	double size = (double)s.f_blocks * s.f_frsize;
	if (size > 600e6) { puts("the shared memory is too large"); return 1; }
	snprintf(name, sizeof name, "/dev/shm/PostgreSQL.%d", 2088012784);
	int fd = open(name, O_RDWR | O_CREAT, 0600);
	if (fd < 0) { perror(name); return 1; }
	while (n * 65536.0 < size * percent / 100) { if (write(fd, page, sizeof page) < 0) break; n++; }
	puts("ready"); fflush(stdout);
	for (long k = 0;; k++) {
		int other = open("/dev/shm/PostgreSQL.1136341590", O_RDWR | O_CREAT, 0600);
		if (other >= 0) {
			if (posix_fallocate(other, 0, 8 << 20) && k % 5 == 0) {
				puts("ERROR: could not resize shared memory segment to 8388608 bytes: No space left on device"); fflush(stdout);
			}
			ftruncate(other, 0);
			close(other);
		}
		sleep(2);
	}
}
