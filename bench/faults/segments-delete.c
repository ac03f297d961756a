// segments-delete MIB: a store which writes segments of MIB with holes (each second block of 4 KiB), flushes them, and
// deletes them as a whole: thousands of extents are freed in long transactions of the journal.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long mib = argc > 1 ? atol(argv[1]) : 96;
	char b[4096], name[64];
	if (mib < 1 || mib > 400) return 2;
	for (unsigned long n = 0;; n++) {
		snprintf(name, sizeof name, "/data/segment-%lu", n % 2);
		int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
		if (fd < 0) { perror("open"); return 1; }
		memset(b, (int)n, sizeof b);
		for (long i = 0; i < mib << 20; i += 8192) if (pwrite(fd, b, sizeof b, i) < 0) { perror("write"); return 1; }
		if (n == 0) { printf("ready\n"); fflush(stdout); }
		fsync(fd);
		unlink(name);
		close(fd); // frees the blocks
		fd = open("/data", O_RDONLY | O_DIRECTORY);
		if (fd >= 0) { fsync(fd); close(fd); }
	}
}
