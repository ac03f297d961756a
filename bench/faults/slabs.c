// slabs READERS: a metrics agent reads /proc/slabinfo in a loop, slabinfo(5). The kernel counts the
// objects of each cache under the lock that allocations need.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long readers = argc > 1 ? atol(argv[1]) : 0;
	static char buffer[1 << 16];
	int fd = open("/proc/slabinfo", O_RDONLY);
	if (readers < 1 || readers > 64) { fprintf(stderr, "usage: slabs READERS\n"); return 2; }
	if (fd < 0 || read(fd, buffer, sizeof buffer) < 1) { perror("/proc/slabinfo"); return 1; }
	printf("ready\n");
	fflush(stdout);
	for (long i = 1; i < readers; i++)
		if (fork() == 0) break;
	for (;;) {
		fd = open("/proc/slabinfo", O_RDONLY);
		while (read(fd, buffer, sizeof buffer) > 0) {}
		close(fd);
	}
}
