// sparseheap REGIONS: an allocator that takes memory in aligned regions of 2 MiB and uses little of each: it keeps
// REGIONS of them, and takes and gives back 16 every 30 ms.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE (2UL << 20)
static char *take(int n) {
	char *m = mmap(NULL, (n + 1) * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (m == MAP_FAILED) { perror("mmap"); exit(1); }
	char *a = (char *)(((uintptr_t)m + HUGE - 1) & ~(HUGE - 1));
	for (int i = 0; i < n; i++) a[i * HUGE] = 1;
	return m;
}
int main(int argc, char **argv) {
	int keep = argc > 1 ? atoi(argv[1]) : 60;
	if (keep > 120) keep = 120;
	printf("ready\n");
	fflush(stdout);
	sleep(2); // the service was started before
	for (char *kept = NULL;;) {
		for (int i = 0; i < 200; i++) { char *m = take(16); usleep(30000); munmap(m, 17 * HUGE); }
		if (kept) munmap(kept, (keep + 1) * HUGE);
		kept = take(keep);
	}
}
