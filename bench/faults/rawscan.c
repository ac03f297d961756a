// rawscan MIB THREADS: a backup agent reads a volume past the page cache, 1 MiB at a time in THREADS threads.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK (1 << 20)
static long blocks;
static void *scan(void *p) {
	unsigned seed = (unsigned)(long)p;
	char *b;
	int fd = open("/data/volume.img", O_RDONLY | O_DIRECT);
	if (fd < 0 || posix_memalign((void **)&b, 4096, BLOCK)) { perror("/data/volume.img"); exit(1); }
	for (;;) if (pread(fd, b, BLOCK, (off_t)(rand_r(&seed) % blocks) * BLOCK) < 0) { perror("pread"); exit(1); }
	return NULL;
}
int main(int argc, char **argv) {
	if (argc < 3) return 2;
	char *b;
	pthread_t t;
	blocks = atol(argv[1]);
	if (blocks > 512) blocks = 512;
	int fd = open("/data/volume.img", O_WRONLY | O_CREAT | O_DIRECT, 0600);
	if (fd < 0 || posix_memalign((void **)&b, 4096, BLOCK)) { perror("/data/volume.img"); return 1; }
	for (long i = 0; i < blocks; i++) {
		memset(b, (int)i | 1, BLOCK);
		if (pwrite(fd, b, BLOCK, (off_t)i * BLOCK) != BLOCK) { perror("pwrite"); return 1; }
	}
	close(fd);
	for (long i = 0; i < atol(argv[2]) && i < 16; i++) pthread_create(&t, NULL, scan, (void *)(i + 1));
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
