// lsmcompact MIB EVERY_MS: each EVERY_MS a log-structured store merges its sorted files: it reads MIB of them past the cache and
// writes them anew, with a flush for each 16 MiB, then renames the result. The size on disk is at most 2 * MIB.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }
static void fail(const char *w) { perror(w); exit(1); }
int main(int argc, char **argv) {
	long mib = argc > 1 ? atol(argv[1]) : 128, every = argc > 2 ? atol(argv[2]) : 6000;
	char *b;
	if (posix_memalign((void **)&b, 4096, 1 << 20)) fail("memory");
	memset(b, 5, 1 << 20);
	int f = open("/data/level.sst", O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (f < 0) fail("/data/level.sst");
	for (long i = 0; i < mib; i++) if (write(f, b, 1 << 20) < 0) fail("write");
	fsync(f);
	close(f);
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		double start = now();
		int in = open("/data/level.sst", O_RDONLY | O_DIRECT), out = open("/data/level.new", O_WRONLY | O_CREAT | O_TRUNC, 0600);
		if (in < 0) in = open("/data/level.sst", O_RDONLY);
		if (in < 0 || out < 0) fail("open");
		for (long i = 0; i < mib; i++) {
			if (pread(in, b, 1 << 20, i << 20) < 0) fail("read");
			b[i] ^= 1;
			if (write(out, b, 1 << 20) < 0) fail("write");
			if (i % 16 == 15) fdatasync(out);
		}
		fsync(out);
		close(in);
		close(out);
		rename("/data/level.new", "/data/level.sst");
		double left = start + every - now();
		if (left > 0) usleep(left * 1000);
	}
}
