/* A renderer: a parent that starts a worker; the worker needs more memory than its container may have,
   is killed by the kernel and is started again. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long max = argc > 1 ? atol(argv[1]) : 400, n = 0;
	for (;;) {
		pid_t pid = fork();
		if (pid == 0) {
			for (long mb = 0; mb < max; mb += 4) {
				volatile char *p = malloc(4 << 20);
				if (!p) _exit(137);
				for (int i = 0; i < 4 << 20; i += 4096) p[i] = i;
				usleep(25000);
			}
			_exit(137);
		}
		int status = 0;
		waitpid(pid, &status, 0);
		if (n++ == 0) puts("ready");
		printf("worker died (status %d), starting it again\n", WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
		fflush(stdout);
		usleep(200000);
	}
}
