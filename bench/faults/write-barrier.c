// write-barrier THREADS: a garbage collector that finds changed pages by protecting them: each thread makes its part of the
// heap read-only with mprotect(2), and each first write to a page is a fault, a SIGSEGV and another mprotect(2).
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PART (2L << 20)
static void barrier(int n, siginfo_t *s, void *u) {
	(void)n; (void)u;
	if (mprotect((void *)((unsigned long)s->si_addr & ~4095UL), 4096, PROT_READ | PROT_WRITE)) _exit(1);
}
static void *mutator(void *x) {
	char *m = mmap(NULL, PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m == MAP_FAILED) exit(1);
	memset(m, 1, PART);
	for (;;) {
		mprotect(m, PART, PROT_READ);
		for (long i = 0; i < PART; i += 4096) ((volatile char *)m)[i]++;
	}
	return x;
}
int main(int argc, char **argv) {
	struct sigaction a = {.sa_sigaction = barrier, .sa_flags = SA_SIGINFO | SA_NODEFER};
	sigaction(SIGSEGV, &a, NULL);
	for (int i = 0; i < (argc > 1 ? atoi(argv[1]) : 3); i++) { pthread_t t; pthread_create(&t, NULL, mutator, NULL); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
