// set12-zombies: a first process of a container that never waits for the probes it inherits: zombies up to the limit of
// processes, where the next probe fails.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(void) {
	int n = 0, failed = 0;
	for (;;) {
		pid_t p = fork();
		if (p == 0) _exit(0);
		if (p > 0) n++;
		else if (!failed++) { printf("probe: fork: %s after %d\nready\n", strerror(errno), n); fflush(stdout); }
		if (n == 5000 && !failed++) { printf("ready\n"); fflush(stdout); } // there is no limit
		usleep(failed ? 1000000 : 5000);
	}
}
