// set12-heap: a service with a fixed heap as large as 94 % of its memory limit of 256 MiB, which it walks all the time.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(void) {
	size_t n = 240ul << 20;
	char *m = malloc(n);
	if (!m) return 1;
	memset(m, 1, n);
	printf("ready\n");
	fflush(stdout);
	for (;;) { for (size_t i = 0; i < n; i += 4096) m[i]++; usleep(100000); }
}
