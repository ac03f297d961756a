// reserve GIB MIB: a runtime which reserves GIB of addresses without access for its heap, uses MIB of them, and calculates a
// fifth of the time. Its virtual size is huge, and does no harm.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv) {
	if (argc < 3) return 2;
	long used = atol(argv[2]) << 20;
	char *m = mmap(NULL, atol(argv[1]) << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (m == MAP_FAILED || mprotect(m, used, PROT_READ | PROT_WRITE)) { perror("mmap"); return 1; }
	memset(m, 1, used);
	printf("ready\n");
	fflush(stdout);
	for (;;) { for (long i = 0; i < 4 << 20; i += 64) m[random() % used]++; usleep(15000); }
}
