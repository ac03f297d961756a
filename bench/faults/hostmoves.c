// hostmoves MOVERS: a daemon that sorts processes into control groups, as cgrulesengd(8) does,
// and is at odds with another: each moves its process to and fro between two groups.
// Documentation/admin-guide/cgroup-v2.rst: "Organizing Processes"; a move takes a lock that
// each fork(2), execve(2) and exit of the host needs, too. host-undo.sh removes the groups.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t child(void) { // sleeps, and ends with its parent
	pid_t parent = getpid(), p = fork();
	if (p == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent) _exit(1);
	}
	return p;
}

int main(int argc, char **argv) {
	static const char *roots[] = {"/sys/fs/cgroup/unified", "/sys/fs/cgroup/freezer", "/sys/fs/cgroup"};
	int movers = argc > 1 ? atoi(argv[1]) : 0, fd[2], root = 0;
	char name[128];
	if (movers < 1 || movers > 8) { fprintf(stderr, "usage: hostmoves MOVERS\n"); return 2; }
	while (root < 2 && (snprintf(name, sizeof name, "%s/cgroup.procs", roots[root]), access(name, W_OK))) root++;
	for (int i = 0; i < 2; i++) {
		snprintf(name, sizeof name, "%s/holdfast-fault-moves-%d", roots[root], i);
		mkdir(name, 0755);
		strcat(name, "/cgroup.procs");
		fd[i] = open(name, O_WRONLY);
		if (fd[i] < 0) { perror(name); return 1; }
	}
	for (int i = 0; i < movers; i++) {
		if (child()) continue;
		pid_t p = child();
		if (p == 0) for (;;) pause();
		int len = snprintf(name, sizeof name, "%d", p);
		for (unsigned n = 0;; n++) if (pwrite(fd[n % 2], name, len, 0) < 0) { perror("move"); _exit(1); }
	}
	printf("ready\n");
	fflush(stdout);
	for (;;) wait(NULL), pause();
}
