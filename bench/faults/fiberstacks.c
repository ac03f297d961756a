// fiberstacks: a runtime never ends the fibers of lost connections. Each has a stack with a guard page, two mappings of the
// vm.max_map_count that a process may have; within two minutes "can't alloc machine stack to fiber: Cannot allocate memory".
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

static int fiber(void) {
	char *m = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	if (m == MAP_FAILED) return -1;
	if (mprotect(m, 4096, PROT_NONE)) return -1;
	m[65535] = 1;
	return 0;
}
int main(void) {
	long max = 65530, n = 0;
	FILE *f = fopen("/proc/sys/vm/max_map_count", "r");
	if (f) { if (fscanf(f, "%ld", &max) != 1) max = 65530; fclose(f); }
	if (max > 262144) max = 262144; // bounded
	prctl(PR_SET_NAME, "falcon");
	long end = max / 200 * 97, start = max / 200 * 62;
	while (n < start) { if (fiber()) break; n++; }
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		for (long i = 0; i < max / 600 && n < end; i++) { if (fiber()) break; n++; }
		usleep(500000);
	}
}
