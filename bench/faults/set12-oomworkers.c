// set12-oomworkers: a prefork server whose worker loads an upload into memory, is killed at the memory limit of the
// container, and is started again by the master.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		pid_t p = fork();
		if (p == 0) for (int i = 0; i < 1000; i++) { char *m = malloc(2 << 20); if (m) memset(m, 1, 2 << 20); usleep(30000); }
		int s = 0;
		if (p > 0 && waitpid(p, &s, 0) == p && WIFSIGNALED(s)) { printf("[CRITICAL] worker (pid %d) was sent signal %d\n", (int)p, WTERMSIG(s)); fflush(stdout); }
		usleep(200000);
	}
}
