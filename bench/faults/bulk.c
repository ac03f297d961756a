// bulk WRITERS MIB: an export that writes files of MIB mebibytes through the page cache from
// their begin to their end, again and again, at full speed. The kernel writes them back,
// Documentation/admin-guide/sysctl/vm.rst: dirty_ratio, and other writers wait.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char block[1 << 20];

int main(int argc, char **argv) {
	int writers = argc > 1 ? atoi(argv[1]) : 0, mib = argc > 2 ? atoi(argv[2]) : 0;
	if (writers < 1 || mib < 1 || writers * mib > 1600) { fprintf(stderr, "usage: bulk WRITERS MIB, at most 1600 in all\n"); return 2; }
	memset(block, 7, sizeof block);
	for (int i = 0; i < writers; i++) {
		char name[32];
		snprintf(name, sizeof name, "/data/export-%d", i);
		int fd = open(name, O_WRONLY | O_CREAT, 0600);
		if (fd < 0 || posix_fallocate(fd, 0, (off_t)mib << 20)) { perror(name); return 1; }
		if (fork() == 0) for (long n = 0;; n++) if (pwrite(fd, block, sizeof block, (n % mib) << 20) < 0) { perror("write"); _exit(1); }
	}
	printf("ready\n");
	fflush(stdout);
	pause();
	return 0;
}
