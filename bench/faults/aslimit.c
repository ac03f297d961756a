// aslimit PERCENT: a judge runs a runtime under ulimit -v (RLIMIT_AS) of 2 GiB. Its reservations have PERCENT of it, its memory is
// small, and each larger buffer for a request cannot be had: ENOMEM, although the host has memory.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
static long vsize(void) { long p = 0; FILE *f = fopen("/proc/self/statm", "r"); if (f) { if (fscanf(f, "%ld", &p) != 1) p = 0; fclose(f); } return p * 4096; }
int main(int argc, char **argv) {
	long limit = 2L << 30, want = limit / 100 * (argc > 1 ? atol(argv[1]) : 96);
	struct rlimit r = {limit, limit};
	if (setrlimit(RLIMIT_AS, &r)) { perror("setrlimit"); return 1; }
	while (vsize() + (8 << 20) < want) {
		char *m = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (m == MAP_FAILED) { perror("mmap"); break; }
		memset(m, 1, 65536);
	}
	printf("ready\n");
	fflush(stdout);
	for (unsigned n = 0;; n++) {
		char *m = mmap(NULL, 128 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (m != MAP_FAILED) munmap(m, 128 << 20);
		else if (n % 20 == 0) fprintf(stderr, "request failed: cannot allocate memory\n");
		usleep(250000);
	}
}
