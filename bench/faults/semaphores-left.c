// semaphores-left PERCENT: workers of a web server which crash and leave System V semaphore arrays: PERCENT of SEMMNI of
// this IPC namespace are taken, and one more each two seconds until 98 %.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/sem.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long a, b, c, max = 0;
	FILE *f = fopen("/proc/sys/kernel/sem", "r");
	if (!f || fscanf(f, "%ld %ld %ld %ld", &a, &b, &c, &max) != 4 || argc < 2) { perror("sem"); return 1; }
	if (max > 60000) max = 60000;
	long n = 0;
	for (; n < max * atol(argv[1]) / 100; n++) if (semget(IPC_PRIVATE, 1, 0600) < 0) { perror("semget"); break; }
	fprintf(stderr, "%ld of %ld arrays\n", n, max);
	printf("ready\n");
	fflush(stdout);
	for (;;) { sleep(2); if (n < max * 98 / 100 && semget(IPC_PRIVATE, 1, 0600) >= 0) n++; }
}
