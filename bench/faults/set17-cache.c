/* A healthy warm cache: 300 MiB in memory that do not grow, 2,000 look-ups a second. */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void) {
	size_t n = 300ul << 20;
	unsigned long x = 88172645463325252ul;
	volatile char *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) { perror("mmap"); return 1; }
	for (size_t i = 0; i < n; i += 4096) p[i] = 1;
	puts("ready"); fflush(stdout);
	for (;;) {
		for (int i = 0; i < 20; i++) {
			x ^= x << 13; x ^= x >> 7; x ^= x << 17;
			p[x % n]++;
		}
		usleep(10000);
	}
}
