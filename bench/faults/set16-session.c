/* A session store: answers requests, and keeps every session: START MB at first, RATE MB a second more, up to MAX MB. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void keep(long kb) {
	for (long i = 0; i < kb; i += 64) {
		char *p = malloc(65536);
		if (!p) return;
		volatile char *v = p;
		for (int k = 0; k < 65536; k += 512) v[k] = k;
	}
}

int main(int argc, char **argv) {
	long start = argc > 1 ? atol(argv[1]) : 200, rate = argc > 2 ? atol(argv[2]) : 4, max = argc > 3 ? atol(argv[3]) : 560;
	volatile unsigned x = 1;
	keep(start * 1024);
	puts("ready"); fflush(stdout);
	for (long kb = start * 1024, n = 0;; n++) {
		if (kb < max * 1024) { keep(rate * 1024 / 16); kb += rate * 1024 / 16; }
		for (int i = 0; i < 1000000; i++) x = x * 1103515245 + i;
		if (n % 160 == 159) { printf("%ld sessions\n", kb / 8); fflush(stdout); }
		usleep(62500);
	}
}
