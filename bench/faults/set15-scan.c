// scan DIR THREADS: a virus scanner: reads the files under DIR and compares them with its signatures.
#define _GNU_SOURCE
#include <fcntl.h>
#include <fts.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static char *root;
static uint32_t sum;
static void *scan(void *p) {
	static __thread unsigned char b[1 << 16];
	for (long pass = 0;; pass++) {
		char *paths[] = {root, NULL};
		FTS *f = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR | FTS_XDEV, NULL);
		if (!f) { perror(root); exit(1); }
		long total = 0, k = 0;
		for (FTSENT *e; (e = fts_read(f)) && total < 500L << 20;) {
			if (e->fts_info != FTS_F || k++ % 3 != (pass + (long)p) % 3) continue;
			int fd = open(e->fts_path, O_RDONLY);
			ssize_t n;
			while (fd >= 0 && (n = read(fd, b, sizeof b)) > 0) {
				uint32_t h = 1;
				for (int r = 0; r < 8; r++) for (ssize_t i = 0; i < n; i++) h = (h << 5) - h + b[i];
				sum ^= h; total += n;
			}
			if (fd >= 0) close(fd);
		}
		fts_close(f);
	}
	return NULL;
}
int main(int argc, char **argv) {
	if (argc < 3) return 2;
	root = argv[1];
	for (long i = 0; i < atol(argv[2]); i++) { pthread_t t; pthread_create(&t, NULL, scan, (void *)i); }
	printf("ready\n"); fflush(stdout);
	pause();
	return sum;
}
