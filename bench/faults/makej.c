// makej JOBS MS: make -j without a number: JOBS compilers run at once, each calculates for MS of CPU time with 2 MiB of memory and
// ends, and make starts the next.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv) {
	int jobs = argc > 1 ? atoi(argv[1]) : 120, ms = argc > 2 ? atoi(argv[2]) : 600, alive = 0;
	if (jobs > 400) jobs = 400;
	for (int said = 0;;) {
		if (alive < jobs) {
			pid_t p = fork();
			if (p == 0) {
				prctl(PR_SET_NAME, "cc1plus");
				char *m = malloc(2 << 20);
				if (m) memset(m, 1, 2 << 20);
				while (clock() < (clock_t)ms * (CLOCKS_PER_SEC / 1000)) for (volatile int i = 0; i < 20000; i++) if (m) m[i * 64]++;
				_exit(0);
			}
			if (p > 0) { alive++; continue; }
		}
		if (!said) { said = 1; printf("ready\n"); fflush(stdout); }
		if (wait(NULL) > 0) alive--;
	}
}
