// pinwork WORKERS: a proxy binds each of its workers to the first CPU (worker_cpu_affinity with a mask that was
// copied from a host with one), and they are busy.
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 4;
	cpu_set_t may, one;
	if (sched_getaffinity(0, sizeof may, &may)) { perror("sched_getaffinity"); return 1; }
	CPU_ZERO(&one);
	for (int c = 0; c < CPU_SETSIZE; c++) if (CPU_ISSET(c, &may)) { CPU_SET(c, &one); break; }
	if (sched_setaffinity(0, sizeof one, &one)) { perror("sched_setaffinity"); return 1; }
	printf("ready\n");
	fflush(stdout);
	for (int i = 1; i < n && i < 16; i++) if (fork() == 0) break;
	for (volatile unsigned long x = 0;; x++);
}
