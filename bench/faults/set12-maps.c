// set12-maps: a search node with so many mapped segments that it is at vm.max_map_count; mmap(2) then fails with ENOMEM.
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
static char out[128];
int main(void) {
	long max = 65530, n = 0, failed = 0;
	FILE *f = fopen("/proc/sys/vm/max_map_count", "r");
	if (f) { if (fscanf(f, "%ld", &max) != 1) max = 65530; fclose(f); }
	if (max > 300000) max = 300000;
	setvbuf(stdout, out, _IOLBF, sizeof out);
	printf("mapping segments\n");
	// one reserved area, of which every other page is readable: two mappings for each
	char *m = mmap(NULL, (size_t)max * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (m == MAP_FAILED) return 1;
	for (; n < max && !failed; n += 2) if (mprotect(m + n * 4096, 4096, PROT_READ)) failed = 1;
	printf("ready\n");
	for (unsigned i = 0;; i++) { // further segments
		void *x = mmap(NULL, 4096, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (x == MAP_FAILED) { if (failed++ % 50 == 1) printf("java.io.IOException: Map failed\n"); }
		usleep(100000);
	}
}
