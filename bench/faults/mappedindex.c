// mappedindex: a search service maps an index of 160 MiB, which its memory limit of 400 MiB holds, and reads 2,000 random
// pages a second of it.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void) {
	const long size = 160L << 20;
	static char buf[1 << 20];
	volatile long sum = 0;
	int fd = open("/data/index", O_RDWR | O_CREAT, 0600);
	if (fd < 0) { perror("open"); return 1; }
	for (long o = 0; o < size; o += sizeof buf) { memset(buf, (int)(o >> 20), sizeof buf); if (pwrite(fd, buf, sizeof buf, o) < 0) { perror("write"); return 1; } }
	fsync(fd);
	char *m = mmap(NULL, size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (m == MAP_FAILED) { perror("mmap"); return 1; }
	printf("ready\n");
	fflush(stdout);
	for (;; usleep(10000)) for (int i = 0; i < 20; i++) sum += m[random() % size];
}
