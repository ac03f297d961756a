// shared-buffers MIB BACKENDS: a database with MIB of shared memory in BACKENDS processes. Each has touched all of it, so the
// sum of their resident sizes is many times what the container uses.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv) {
	if (argc < 3) return 2;
	long size = atol(argv[1]) << 20;
	int done[2];
	char c = 0;
	char *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (m == MAP_FAILED || pipe(done)) { perror("mmap"); return 1; }
	for (int i = 0; i < atoi(argv[2]); i++) {
		pid_t p = fork();
		if (p < 0) { perror("fork"); return 1; }
		if (p) continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		srandom(i);
		for (long k = 0; k < size; k += 4096) ((volatile char *)m)[k]++;
		if (write(done[1], &c, 1) != 1) _exit(1);
		for (;;) { for (int k = 0; k < 20000; k++) ((volatile char *)m)[random() % size]++; usleep(60000); }
	}
	for (int i = 0; i < atoi(argv[2]); i++) if (read(done[0], &c, 1) != 1) return 1;
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
