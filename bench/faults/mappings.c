// mappings MOST PER_SECOND: a search engine maps a part of an index for each segment and unmaps none,
// mmap(2). A process may have max_map_count mappings.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long most = argc > 2 ? atol(argv[1]) : 0, rate = argc > 2 ? atol(argv[2]) : 0, n = 0;
	if (most < 1 || most > 250000 || rate < 100) { fprintf(stderr, "usage: mappings MOST PER_SECOND\n"); return 2; }
	printf("ready\n");
	fflush(stdout);
	// Neighbours differ in their protection, so the kernel cannot join them.
	while (n < most && mmap(NULL, 4096, n % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED)
		if (++n % (rate / 100) == 0) usleep(10000);
	fprintf(stderr, "%ld mappings\n", n);
	for (;;) pause();
}
