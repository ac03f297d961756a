/* An agent of the host that reads the statistics of all control groups and processes, three readers without a pause. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static void take(const char *d, const char *n) {
	char p[2048], b[16384];
	snprintf(p, sizeof p, "%s/%s", d, n);
	int fd = open(p, O_RDONLY);
	if (fd < 0) return;
	while (read(fd, b, sizeof b) > 0);
	close(fd);
}
static void groups(const char *d, int depth) {
	char p[1536];
	struct dirent *e;
	take(d, "memory.stat"); take(d, "cpu.stat"); take(d, "io.stat");
	take(d, "memory.numa_stat"); take(d, "memory.current"); take(d, "pids.current");
	DIR *o = opendir(d);
	if (!o) return;
	while (depth < 8 && (e = readdir(o)))
		if (e->d_type == DT_DIR && e->d_name[0] != '.') {
			snprintf(p, sizeof p, "%.1200s/%.255s", d, e->d_name);
			groups(p, depth + 1);
		}
	closedir(o);
}
static void *run(void *a) {
	char p[300];
	struct dirent *e;
	(void)a;
	for (;;) {
		groups("/sys/fs/cgroup", 0);
		DIR *o = opendir("/proc");
		while (o && (e = readdir(o)))
			if (isdigit((unsigned char)e->d_name[0])) {
				snprintf(p, sizeof p, "/proc/%s", e->d_name);
				take(p, "stat"); take(p, "status"); take(p, "io"); take(p, "smaps_rollup");
			}
		if (o) closedir(o);
	}
	return 0;
}
int main(void) {
	pthread_t t;
	for (int i = 0; i < 3; i++) pthread_create(&t, 0, run, 0);
	sleep(1);
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
