// hoststacks HZ HOLD_MS: a sampling profiler on the host stops the service "bystander requests" of a container HZ times a second with ptrace(2)
// (SEIZE, INTERRUPT, DETACH), reads its stack for HOLD_MS, and lets it run again.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
static pid_t find(void) {
	DIR *d = opendir("/proc");
	pid_t found = 0;
	for (struct dirent *e; d && !found && (e = readdir(d));) {
		char n[300], c[300] = {0};
		if (e->d_name[0] < '1' || e->d_name[0] > '9') continue;
		snprintf(n, sizeof n, "/proc/%s/cmdline", e->d_name);
		int f = open(n, O_RDONLY);
		if (f < 0) continue;
		ssize_t k = read(f, c, sizeof c - 2);
		close(f);
		size_t first = strlen(c);
		if (k > 0 && first >= 9 && !strcmp(c + first - 9, "bystander") && !strcmp(c + first + 1, "requests")) found = atoi(e->d_name);
	}
	if (d) closedir(d);
	return found;
}
int main(int argc, char **argv) {
	int hz = argc > 1 ? atoi(argv[1]) : 60, hold = argc > 2 ? atoi(argv[2]) : 9, said = 0;
	for (pid_t p = 0;;) {
		if (!p && !(p = find())) { usleep(200000); continue; }
		if (ptrace(PTRACE_SEIZE, p, 0, 0)) { perror("ptrace"); p = 0; usleep(500000); continue; }
		ptrace(PTRACE_INTERRUPT, p, 0, 0);
		if (waitpid(p, NULL, __WALL) == p) usleep(hold * 1000);
		ptrace(PTRACE_DETACH, p, 0, 0);
		if (!said) { said = 1; printf("ready\n"); fflush(stdout); }
		usleep(1000000 / hz - hold * 1000 > 1000 ? 1000000 / hz - hold * 1000 : 1000);
	}
}
