// fragcache KIB_A_SECOND MAX_MIB: a cache of sessions whose entries expire, but one entry of each page lives on, so no page of its heap is
// ever free again: the memory grows by KIB_A_SECOND although the number of bytes in use hardly does. It stops at MAX_MIB.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
	long rate = argc > 1 ? atol(argv[1]) : 4096, max = (argc > 2 ? atol(argv[2]) : 280) << 10, have = 0;
	printf("ready\n");
	fflush(stdout);
	for (;; usleep(100000)) {
		for (long k = 0; k < rate / 40 && have < max; k++, have += 4) {
			char *e[16];
			for (int i = 0; i < 16; i++) { e[i] = malloc(240); if (e[i]) memset(e[i], i, 240); }
			for (int i = 1; i < 16; i++) if (i != 8) free(e[i]);
			e[0] = malloc(3600); // the next entries are of another size, and the holes remain
			if (e[0]) memset(e[0], 1, 3600);
		}
	}
}
