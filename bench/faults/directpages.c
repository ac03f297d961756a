// directpages RATE: a database with its own cache reads and writes pages of 16 KiB past the page cache, O_DIRECT, RATE of each a second, in a file of 32 MiB.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
	int rate = argc > 1 ? atoi(argv[1]) : 25;
	char *b;
	int f = open("/data/ibdata1", O_RDWR | O_CREAT | O_DIRECT, 0600);
	if (f < 0 || posix_memalign((void **)&b, 4096, 1 << 20)) { perror("/data/ibdata1"); return 1; }
	memset(b, 3, 1 << 20);
	for (int i = 0; i < 32; i++) if (pwrite(f, b, 1 << 20, (long)i << 20) < 0) { perror("write"); return 1; }
	printf("ready\n");
	fflush(stdout);
	for (;; usleep(1000000 / rate)) {
		if (pread(f, b, 16384, random() % 2048 * 16384) < 0) perror("read");
		if (pwrite(f, b, 16384, random() % 2048 * 16384) < 0) perror("write");
	}
}
