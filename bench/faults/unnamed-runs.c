// unnamed-runs MIB: a sort which keeps its runs in files without a name, as tmpfile(3) does: four of MIB / 4, of which it
// replaces the oldest twice a second. The deleted files hold MIB of the disk and no more, and are never flushed.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long n = (argc > 1 ? atol(argv[1]) : 32) << 18;
	char *b = malloc(n);
	int fd[4] = {-1, -1, -1, -1};
	if (!b) return 1;
	for (unsigned long i = 0;; i++) {
		int *f = &fd[i % 4];
		if (*f >= 0) close(*f);
		*f = open("/data/run", O_RDWR | O_CREAT | O_EXCL, 0600);
		if (*f < 0) { perror("open"); return 1; }
		unlink("/data/run");
		memset(b, (int)i, n);
		if (pwrite(*f, b, n, 0) < 0 || pread(*f, b, n, 0) < 0) { perror("write"); return 1; }
		if (i == 4) { printf("ready\n"); fflush(stdout); }
		usleep(500000);
	}
}
