// eagainloop: three workers read a non-blocking pipe without poll(2) and try again at once at each EAGAIN, read(2); a message
// comes once in a second.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(void) {
	int p[3][2];
	for (int i = 0; i < 3; i++) {
		if (pipe2(p[i], O_NONBLOCK)) { perror("pipe"); return 1; }
		if (fork() == 0) {
			char b[4096];
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			prctl(PR_SET_NAME, "queue-reader");
			for (;;) if (read(p[i][0], b, sizeof b) < 0 && errno != EAGAIN) _exit(1);
		}
	}
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		for (int i = 0; i < 3; i++) if (write(p[i][1], "message", 7) < 0) return 1;
		sleep(1);
	}
}
