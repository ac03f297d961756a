// disk KIND DIR THREADS MB: uses one file of MB in DIR; it has no name, so that nothing remains. Kinds:
// load: writes 1 MiB and waits for the disk; dump: writes without waiting, and flushes after each pass; scan: reads
// 64 KiB from random places past the page cache; copy: reads and writes 1 MiB past the cache.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int fd; static long mb, threads; static char kind;
static void fail(const char *w) { perror(w); _exit(1); }
static void *work(void *p) {
	long id = (long)p, part = mb / threads; char *b;
	unsigned x = id * 77 + 5;
	if (posix_memalign((void **)&b, 4096, 1 << 20)) fail("memory");
	for (int i = 0; i < 1 << 20; i++) b[i] = rand_r(&x);
	for (long n = 0;; n++) {
		off_t at = (off_t)(id * part + n % part) << 20;
		off_t any = (off_t)(rand_r(&x) % (mb * 16)) << 16;
		switch (kind) {
		case 'l': if (pwrite(fd, b, 1 << 20, at) < 0 || fdatasync(fd)) fail("write"); break;
		case 'd': if (pwrite(fd, b, 1 << 20, at) < 0) fail("write");
			if (n % part == part - 1) { fdatasync(fd); if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(id * part) << 20, (off_t)part << 20)) perror("punch"); }
			break;
		case 's': if (pread(fd, b, 1 << 16, any) < 0) fail("read"); break;
		default: if (pread(fd, b, 1 << 20, any) < 0 || pwrite(fd, b, 1 << 20, at) < 0) fail("copy");
		}
	}
	return NULL;
}
int main(int argc, char **argv) {
	char name[256], *b;
	if (argc < 5) return 2;
	kind = argv[1][0]; threads = atol(argv[3]); mb = atol(argv[4]);
	int past = kind == 's' || kind == 'c';
	snprintf(name, sizeof name, "%s/set15-XXXXXX", argv[2]);
	fd = mkostemp(name, past ? O_DIRECT : 0);
	if (fd < 0) fail(name);
	unlink(name);
	if (posix_memalign((void **)&b, 4096, 1 << 20)) fail("memory");
	memset(b, 7, 1 << 20);
	if (kind != 'd' && kind != 'l') for (long i = 0; i < mb; i++) if (pwrite(fd, b, 1 << 20, (off_t)i << 20) < 0) fail("write");
	for (long i = 0; i < threads; i++) { pthread_t t; pthread_create(&t, NULL, work, (void *)i); }
	printf("ready\n"); fflush(stdout);
	pause();
	return 0;
}
