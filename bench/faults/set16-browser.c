/* A page renderer: starts short helper processes and never waits for them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
	int start = argc > 1 ? atoi(argv[1]) : 360, max = argc > 2 ? atoi(argv[2]) : 390;
	for (int n = 0;; ) {
		if (n < max) {
			pid_t pid = fork();
			if (pid == 0) _exit(0);
			if (pid > 0) n++;
			else { printf("cannot start a helper: %s\n", strerror(errno)); fflush(stdout); sleep(2); }
		}
		if (n == start) { puts("ready"); fflush(stdout); }
		if (n >= start) sleep(3);
	}
}
