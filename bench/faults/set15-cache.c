// cache MB RATE: a healthy cache: MB of entries, all in use, and RATE look-ups a second. It does not grow.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
	if (argc < 3) return 2;
	size_t n = (size_t)atol(argv[1]) << 20; char *m = malloc(n); long sum = 0;
	if (!m) return 1;
	memset(m, 1, n);
	printf("ready\n"); fflush(stdout);
	for (;; usleep(10000)) for (long i = 0; i < atol(argv[2]) / 100; i++) { size_t at = ((size_t)rand() * 4096) % n; sum += m[at]++; }
	return sum;
}
