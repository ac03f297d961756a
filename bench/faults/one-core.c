// one-core THREADS: a renderer with a wrong setting of its CPUs: all of its THREADS threads are bound to the first CPU.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *render(void *x) { for (volatile unsigned long i = 0;; i++); return x; }
int main(int argc, char **argv) {
	cpu_set_t all, one;
	sched_getaffinity(0, sizeof all, &all);
	CPU_ZERO(&one);
	for (int c = 0; c < CPU_SETSIZE; c++) if (CPU_ISSET(c, &all)) { CPU_SET(c, &one); break; }
	if (sched_setaffinity(0, sizeof one, &one)) { perror("sched_setaffinity"); return 1; }
	for (int i = 0; i < (argc > 1 ? atoi(argv[1]) : 4); i++) { pthread_t t; pthread_create(&t, NULL, render, NULL); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
