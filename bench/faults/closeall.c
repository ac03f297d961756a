// closeall WORKERS: each worker starts a program again and again, as old subprocess libraries
// do: the child closes every descriptor that its limit allows, close(2) and getrlimit(2), before
// it calls execve(2). Under a high limit nearly all of these calls fail with EBADF.
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void start(long most) {
	pid_t p = fork();
	if (p == 0) {
		for (long fd = 3; fd < most; fd++) close(fd);
		execl("/bin/true", "true", NULL);
		_exit(0);
	}
	if (p > 0) waitpid(p, NULL, 0);
}

int main(int argc, char **argv) {
	int workers = argc > 1 ? atoi(argv[1]) : 0;
	if (workers < 1 || workers > 16) { fprintf(stderr, "usage: closeall WORKERS\n"); return 2; }
	long most = sysconf(_SC_OPEN_MAX);
	printf("ready\n");
	fflush(stdout);
	for (int i = 0; i < workers; i++) if (fork() == 0) for (;;) start(most);
	pause();
	return 0;
}
