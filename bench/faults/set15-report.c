// report MB: a process reads MB into its memory, is killed at the limit of the container, and is started again.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
	long mb = argc > 1 ? atol(argv[1]) : 300;
	if (mb > 600) mb = 600;
	for (int n = 0;; n++) {
		pid_t p = fork();
		if (p == 0) {
			int fd = open("/proc/self/oom_score_adj", O_WRONLY);
			if (fd >= 0 && write(fd, "900", 3) < 0) perror("oom_score_adj");
			for (long i = 0; i < mb; i++) { char *m = malloc(1 << 20); if (!m) _exit(1); memset(m, i + 1, 1 << 20); usleep(4000); }
			_exit(0);
		}
		int st = 0;
		waitpid(p, &st, 0);
		if (n == 1) { printf("ready\n"); fflush(stdout); }
		if (WIFSIGNALED(st)) { printf("report worker ended by signal %d, starting it again\n", WTERMSIG(st)); fflush(stdout); }
		usleep(500000);
	}
}
