/* A small healthy database: 20 commits a second, each of 8 KiB, on the disk before it ends. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(void) {
	static char b[8192];
	memset(b, 'l', sizeof b);
	int fd = open("/data/ledger.wal", O_CREAT | O_RDWR | O_TRUNC, 0644);
	if (fd < 0) { perror("ledger"); return 1; }
	puts("ready"); fflush(stdout);
	for (long n = 0;; n++) {
		if (pwrite(fd, b, sizeof b, (n % 2048) * sizeof b) < 0) perror("write");
		fdatasync(fd);
		usleep(50000);
	}
}
