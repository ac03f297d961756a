// agent THREADS: a monitoring agent: reads the counters of all control groups and the memory maps of all processes, again and again.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <fts.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void get(const char *dir, const char *name) {
	char n[4400], b[16384];
	snprintf(n, sizeof n, "%s/%s", dir, name);
	int fd = open(n, O_RDONLY);
	if (fd < 0) return;
	while (read(fd, b, sizeof b) > 0);
	close(fd);
}
static void *collect(void *p) {
	for (;;) {
		char *paths[] = {"/sys/fs/cgroup", NULL}, n[300];
		FTS *f = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
		for (FTSENT *e; f && (e = fts_read(f));) if (e->fts_info == FTS_D)
			for (const char **k = (const char *[]){"memory.stat", "memory.numa_stat", "cpu.stat", "io.stat", "memory.current", "pids.current", NULL}; *k; k++) get(e->fts_path, *k);
		if (f) fts_close(f);
		DIR *d = opendir("/proc");
		for (struct dirent *e; d && (e = readdir(d));) if (e->d_name[0] > '0' && e->d_name[0] <= '9') {
			snprintf(n, sizeof n, "/proc/%s", e->d_name);
			get(n, "smaps"); get(n, "stat"); get(n, "status");
		}
		if (d) closedir(d);
		get("/proc", "stat"); get("/proc", "slabinfo");
	}
	return p;
}
int main(int argc, char **argv) {
	for (int i = 0; i < (argc > 1 ? atoi(argv[1]) : 1); i++) { pthread_t t; pthread_create(&t, NULL, collect, NULL); }
	printf("ready\n"); fflush(stdout);
	pause();
	return 0;
}
