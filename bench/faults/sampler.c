// sampler THREADS: a debugger for a language without frame pointers: it reads the memory of its own child in small pieces
// with process_vm_readv(2), as often as it can.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#define SIZE (32L << 20)
static char *mem;
static pid_t child;
static void *sample(void *x) {
	static __thread char out[128 * 64];
	struct iovec from[128], to = {out, sizeof out};
	unsigned seed = (unsigned)(long)x;
	for (;;) {
		for (int i = 0; i < 128; i++) from[i] = (struct iovec){mem + (rand_r(&seed) % (SIZE / 4096)) * 4096, 64};
		if (process_vm_readv(child, &to, 1, from, 128, 0) < 0) { perror("process_vm_readv"); exit(1); }
	}
}
int main(int argc, char **argv) {
	mem = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED) { perror("mmap"); return 1; }
	memset(mem, 1, SIZE);
	child = fork();
	if (child == 0) { prctl(PR_SET_PDEATHSIG, SIGKILL); for (;;) { usleep(5000); mem[0]++; } }
	for (long i = 0; i < (argc > 1 ? atoi(argv[1]) : 4); i++) { pthread_t t; pthread_create(&t, NULL, sample, (void *)(i + 1)); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
