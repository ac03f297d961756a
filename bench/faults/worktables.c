// worktables: two reports of a database sort more than their memory for work holds. Each writes twelve sorted runs into
// temporary files, merges them into another one, reads that and drops all, without an end.
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { RUNS = 12, RUN = 16 << 20, CHUNK = 1 << 20 };
static int temp(int worker, int n) {
	char b[64];
	snprintf(b, sizeof b, "/data/pgsql_tmp%d.%d", worker, n);
	int fd = open(b, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0) { perror(b); _exit(1); }
	unlink(b);
	return fd;
}
static void report(int worker) {
	static uint64_t b[CHUNK / 8];
	int run[RUNS];
	uint64_t x = worker + 1;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NAME, "postgres-sort");
	for (;;) {
		for (int r = 0; r < RUNS; r++) {
			run[r] = temp(worker, r);
			for (int i = 0; i < RUN; i += CHUNK) {
				for (int k = 0; k < CHUNK / 8; k++) b[k] = x = x * 6364136223846793005u + 1;
				if (write(run[r], b, CHUNK) != CHUNK) _exit(1);
			}
		}
		int out = temp(worker, RUNS);
		for (int i = 0; i < RUN; i += CHUNK) for (int r = 0; r < RUNS; r++)
			if (pread(run[r], b, CHUNK, i) != CHUNK || write(out, b, CHUNK) != CHUNK) _exit(1);
		lseek(out, 0, SEEK_SET);
		while (read(out, b, CHUNK) > 0);
		for (int r = 0; r < RUNS; r++) close(run[r]);
		close(out);
	}
}
int main(void) {
	for (int i = 0; i < 2; i++) if (fork() == 0) report(i);
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
