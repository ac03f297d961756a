// coredumps MIB MILLISECONDS MOST: a worker of MIB crashes at each start and leaves a core file in
// /data, core(5). Its supervisor starts it again after a pause and keeps up to MOST files.
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void crash(size_t bytes) {
	char *heap = malloc(bytes);
	if (!heap) _exit(1);
	for (size_t i = 0; i < bytes; i += 64) heap[i] = (char)(i >> 6) | 1;
	abort();
}

// keep renames the new core file, whose name is "core" or "core.PID", so that the next has room.
static int keep(long n) {
	DIR *d = opendir(".");
	struct dirent *e;
	char name[32];
	int kept = 0;
	while (d && !kept && (e = readdir(d)))
		if (strncmp(e->d_name, "core", 4) == 0) {
			snprintf(name, sizeof name, "dump-%ld", n);
			kept = rename(e->d_name, name) == 0;
		}
	if (d) closedir(d);
	return kept;
}

int main(int argc, char **argv) {
	long mib = argc > 3 ? atol(argv[1]) : 0, pause_ms = argc > 3 ? atol(argv[2]) : 0, most = argc > 3 ? atol(argv[3]) : 0;
	struct rlimit all;
	if (mib < 1 || pause_ms < 1 || most < 1 || mib * most > 2000) { fprintf(stderr, "usage: coredumps MIB MILLISECONDS MOST\n"); return 2; }
	if (chdir("/data") != 0) { perror("/data"); return 1; }
	getrlimit(RLIMIT_CORE, &all);
	all.rlim_cur = all.rlim_max;
	setrlimit(RLIMIT_CORE, &all);
	for (long n = 0; n < most; n++) {
		pid_t pid = fork();
		if (pid == 0) crash((size_t)mib << 20);
		waitpid(pid, NULL, 0);
		if (!keep(n)) { fprintf(stderr, "no core file in /data\n"); return 1; }
		if (n == 0) { printf("ready\n"); fflush(stdout); }
		usleep(pause_ms * 1000);
	}
	for (;;) pause();
}
