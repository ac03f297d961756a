// heaptrim PROCESSES: each request takes 6 MiB in buffers of 48 KiB from malloc(3), which was told to give the top of
// the heap back at once (M_TRIM_THRESHOLD): brk(2) up and down and a fault for each page, again and again.
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define N 128
#define SIZE (48 << 10)
int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 2;
	static char *b[N];
	mallopt(M_MMAP_THRESHOLD, 1 << 30);
	mallopt(M_TRIM_THRESHOLD, 0);
	mallopt(M_TOP_PAD, 0);
	printf("ready\n");
	fflush(stdout);
	for (int i = 1; i < n && i < 16; i++) if (fork() == 0) break;
	for (;;) {
		for (int i = 0; i < N; i++) {
			b[i] = malloc(SIZE);
			if (!b[i]) return 1;
			for (int k = 0; k < SIZE; k += 4096) b[i][k] = 1;
		}
		for (int i = N - 1; i >= 0; i--) free(b[i]);
	}
}
