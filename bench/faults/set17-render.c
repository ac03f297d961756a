/* Renders pages with a browser process each; it does not wait for those that ended. ARG of them at the start. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int c, char **v) {
	int start = c > 1 ? atoi(v[1]) : 470;
	for (int n = 0;; n++) {
		pid_t p = fork();
		if (p == 0) _exit(0);
		if (p < 0) { fprintf(stderr, "fork: Resource temporarily unavailable\n"); sleep(1); }
		if (n == start) { puts("ready"); fflush(stdout); }
		if (n >= start) usleep(2500000);
		else usleep(1000);
	}
}
