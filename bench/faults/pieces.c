// pieces: a torrent client writes blocks of 16 KiB at random places of sparse files, flushes them, reads each piece back and
// checks its hash; the disk is busy with small random writes.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { FILES = 3, SIZE = 128 << 20, BLOCK = 16 << 10, PIECE = 256 << 10 };
static int fd[FILES];
static void *peer(void *p) {
	int f = (int)(long)p;
	unsigned seed = f + 1;
	char *b = malloc(PIECE);
	volatile uint32_t hash = 0;
	prctl(PR_SET_NAME, "libtorrent");
	for (unsigned long n = 1;; n++) {
		memset(b, (int)n, BLOCK);
		if (pwrite(fd[f], b, BLOCK, (off_t)(rand_r(&seed) % (SIZE / BLOCK)) * BLOCK) < 0) { perror("write"); exit(1); }
		if (n % 64 == 0) fdatasync(fd[f]);
		if (n % 16 == 0 && pread(fd[f], b, PIECE, (off_t)(rand_r(&seed) % (SIZE / PIECE)) * PIECE) > 0)
			for (int i = 0; i < PIECE; i += 64) hash = hash * 31 + b[i];
	}
	return NULL;
}
int main(void) {
	char n[64];
	for (int i = 0; i < FILES; i++) {
		snprintf(n, sizeof n, "/data/download-%d.part", i);
		fd[i] = open(n, O_RDWR | O_CREAT | O_TRUNC, 0600);
		if (fd[i] < 0 || ftruncate(fd[i], SIZE)) { perror(n); return 1; }
	}
	for (long i = 0; i < FILES; i++) { pthread_t t; pthread_create(&t, NULL, peer, (void *)i); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
