// stoppednb COUNT: an online notebook has COUNT kernels of absent users, which it has stopped by SIGSTOP until they come back. One kernel works a little.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 60;
	for (int i = 0; i < n; i++) if (fork() == 0) {
		prctl(PR_SET_NAME, "ipykernel");
		char *m = malloc(1 << 20);
		if (m) memset(m, 1, 1 << 20);
		for (;;) raise(SIGSTOP);
	}
	printf("ready\n");
	fflush(stdout);
	for (;;) { for (volatile int i = 0; i < 1000000; i++); usleep(30000); }
}
