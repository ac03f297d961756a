// hostsetns: a monitoring agent of the host starts a process for each container, which enters its namespaces, setns(2),
// reads its network statistics and ends, again and again without a pause.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void look(int pid) {
	static const char *ns[] = {"ipc", "uts", "net", "mnt"};
	char n[64], b[8192];
	int f[4];
	for (int i = 0; i < 4; i++) { snprintf(n, sizeof n, "/proc/%d/ns/%s", pid, ns[i]); f[i] = open(n, O_RDONLY); }
	for (int i = 0; i < 4; i++) if (f[i] >= 0) { if (setns(f[i], 0)) {} close(f[i]); }
	for (int i = 0; i < 2; i++) {
		int d = open(i ? "/proc/net/snmp" : "/proc/net/dev", O_RDONLY);
		if (d < 0) continue;
		while (read(d, b, sizeof b) > 0);
		close(d);
	}
	_exit(0);
}
int main(void) {
	int pids[32], told = 0;
	for (int w = 0; w < 2; w++) if (fork() == 0) break; else told++;
	if (told == 2) { sleep(1); printf("ready\n"); fflush(stdout); for (;;) wait(NULL); }
	for (;;) {
		int n = 0;
		DIR *d = opendir("/proc");
		for (struct dirent *e; d && n < 32 && (e = readdir(d));) {
			char name[300], b[16] = "";
			if (e->d_name[0] < '1' || e->d_name[0] > '9') continue;
			snprintf(name, sizeof name, "/proc/%s/cmdline", e->d_name);
			int f = open(name, O_RDONLY);
			if (f < 0) continue;
			if (read(f, b, 7) == 7 && !strcmp(b, "/fault/")) pids[n++] = atoi(e->d_name);
			close(f);
		}
		if (d) closedir(d);
		if (!n) { usleep(200000); continue; }
		for (int r = 0; r < 100; r++) for (int i = 0; i < n; i++) { pid_t p = fork(); if (p == 0) look(pids[i]); if (p > 0) waitpid(p, NULL, 0); }
	}
}
