// store START MAX: its health check starts a process every 2 s, and nothing collects the ended ones: START at first, MAX at most.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv) {
	if (argc < 3) return 2;
	for (int n = 0;; n++) {
		if (n < atoi(argv[2])) { pid_t p = fork(); if (p == 0) _exit(0); if (p < 0) perror("health check"); }
		if (n == atoi(argv[1])) { printf("ready\n"); fflush(stdout); }
		if (n >= atoi(argv[1])) sleep(2);
	}
}
