// pg PERCENT: a database whose parallel queries hold PERCENT of /dev/shm (512 MB at most), and then ask for 8 MB more, without success.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>
int main(int argc, char **argv) {
	struct statvfs v; char name[64];
	if (statvfs("/dev/shm", &v)) { perror("/dev/shm"); return 1; }
	unsigned long long want = (unsigned long long)v.f_blocks * v.f_frsize / 100 * (argc > 1 ? atoi(argv[1]) : 90);
	if (want > 512ULL << 20) { fprintf(stderr, "/dev/shm is too large\n"); return 1; }
	int n = want >> 20; char **seg = calloc(n + 1, sizeof *seg);
	for (int i = 0; i < n; i++) {
		snprintf(name, sizeof name, "/dev/shm/PostgreSQL.%d", 100000 + i);
		int fd = open(name, O_CREAT | O_RDWR, 0600);
		if (fd < 0 || posix_fallocate(fd, 0, 1 << 20)) { perror(name); return 1; }
		seg[i] = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		memset(seg[i], 1, 1 << 20);
		close(fd);
	}
	printf("ready\n"); fflush(stdout);
	for (int k = 0;; k++) {
		int fd = open("/dev/shm/PostgreSQL.1", O_CREAT | O_RDWR, 0600), e = fd < 0 ? errno : posix_fallocate(fd, 0, 8 << 20);
		if (e && k % 4 == 0) { printf("ERROR: could not resize shared memory segment \"/PostgreSQL.1\" to 8388608 bytes: %s\n", strerror(e)); fflush(stdout); }
		if (fd >= 0) close(fd);
		unlink("/dev/shm/PostgreSQL.1");
		for (int i = 0; i < n; i++) seg[i][0]++;
		usleep(500000);
	}
}
