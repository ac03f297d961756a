// stdiopipes: an agent does not close the pipes of the tools that it has started and that have ended; it holds 97 % of its
// RLIMIT_NOFILE of 1024, and soon no tool can be started: "too many open files".
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
	struct rlimit r;
	getrlimit(RLIMIT_NOFILE, &r);
	if (r.rlim_cur > 1024) r.rlim_cur = 1024;
	setrlimit(RLIMIT_NOFILE, &r);
	prctl(PR_SET_NAME, "mcp-agent");
	for (int tools = 0, last = 0; last < (int)r.rlim_cur * 97 / 100 - 6; tools++) {
		int p[3][2];
		for (int i = 0; i < 3; i++) if (pipe(p[i])) { perror("pipe"); return 1; }
		last = p[2][1];
		if (tools % 10 == 0) { pid_t c = fork(); if (c == 0) _exit(0); if (c > 0) waitpid(c, NULL, 0); }
	}
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
