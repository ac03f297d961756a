// frames PERCENT RATE: a browser under test which forgets shared memory: /dev/shm has PERCENT of its size at the start and
// grows by RATE thousandths of it a second, until 96 %.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

static int number;
static void leak(long n) {
	static char b[65536];
	char name[64];
	snprintf(name, sizeof name, "/dev/shm/.org.browser.%d", number++);
	int fd = open(name, O_RDWR | O_CREAT, 0600);
	memset(b, number, sizeof b);
	for (; fd >= 0 && n > 0; n -= sizeof b) if (write(fd, b, n < (long)sizeof b ? n : (long)sizeof b) < 0) { perror("write"); break; }
	if (fd >= 0) close(fd);
}
int main(int argc, char **argv) {
	struct statvfs s;
	if (argc < 3 || statvfs("/dev/shm", &s)) { perror("/dev/shm"); return 1; }
	long size = s.f_blocks * s.f_frsize, used;
	if (size > 128L << 20) size = 128L << 20;
	used = size / 100 * atol(argv[1]);
	leak(used);
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		sleep(1);
		long n = size / 1000 * atol(argv[2]);
		if (used + n < size / 100 * 96) { leak(n); used += n; }
	}
}
