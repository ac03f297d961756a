// killall SLEEPERS CALLERS: a judge of programs asks without a pause whether processes are left,
// kill(2) with the process -1 and the signal 0. The kernel walks all processes of the host under
// the lock that forks and exits need.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long sleepers = argc > 2 ? atol(argv[1]) : 0, callers = argc > 2 ? atol(argv[2]) : 0;
	if (sleepers < 1 || sleepers > 900 || callers < 1 || callers > 16) { fprintf(stderr, "usage: killall SLEEPERS CALLERS\n"); return 2; }
	for (long i = 0; i < sleepers; i++) {
		pid_t pid = fork();
		if (pid < 0) { perror("fork"); return 1; }
		if (pid == 0) for (;;) pause();
	}
	printf("ready\n");
	fflush(stdout);
	for (long i = 1; i < callers; i++)
		if (fork() == 0) break;
	for (;;)
		if (kill(-1, 0) != 0) { perror("kill"); return 1; }
}
