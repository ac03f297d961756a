// A worker with 400 MiB crashes one second after each start, and the kernel writes its core to disk (core(5)).
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
	struct rlimit l;
	if (chdir("/data")) { perror("/data"); return 1; }
	getrlimit(RLIMIT_CORE, &l);
	l.rlim_cur = l.rlim_max;
	setrlimit(RLIMIT_CORE, &l);
	if (write(1, "ready\n", 6) < 0) return 1;
	for (;;) {
		int status = 0;
		pid_t p = fork();
		if (p == 0) {
			char *m = malloc(400L << 20);
			if (!m) _exit(1);
			memset(m, 7, 400L << 20);
			sleep(1);
			if (m[getpid()] == 7) abort();
		}
		if (p > 0) waitpid(p, &status, 0);
		if (!WCOREDUMP(status)) fprintf(stderr, "no core was written\n");
		sleep(1);
	}
}
