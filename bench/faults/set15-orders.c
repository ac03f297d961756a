// orders START_MB MB_PER_S MAX_MB: keeps every answer in memory: START_MB at once, then MB_PER_S more, up to MAX_MB.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static char *volatile kept; // otherwise the compiler removes the memory
static void keep(long kb) { kept = malloc(kb << 10); if (kept) memset(kept, 1, kb << 10); }
int main(int argc, char **argv) {
	if (argc < 4) return 2;
	long kb = atol(argv[1]) << 10, step = (atol(argv[2]) << 10) / 10, max = atol(argv[3]) << 10;
	for (long i = 0; i < kb; i += 64) keep(64);
	printf("ready\n"); fflush(stdout);
	for (;; usleep(100000)) if (kb + step < max) { for (long i = 0; i < step; i += 32) keep(32); kb += step; }
}
