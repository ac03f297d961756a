// cachefill: a backup reads thin disk images from end to end through the page cache, again and again, and the kernel keeps
// their pages instead of those that other containers need.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

static char buf[1 << 20];
int main(void) {
	prctl(PR_SET_NAME, "image-backup");
	int fd = open("/data/vm.img", O_RDWR | O_CREAT, 0600); // 6 GiB without a block on the disk
	if (fd < 0 || ftruncate(fd, 6L << 30)) { perror("vm.img"); return 1; }
	printf("ready\n");
	fflush(stdout);
	volatile unsigned sum = 0;
	for (;;) {
		lseek(fd, 0, SEEK_SET);
		for (ssize_t n; (n = read(fd, buf, sizeof buf)) > 0;) for (ssize_t i = 0; i < n; i += 512) sum += buf[i];
	}
}
