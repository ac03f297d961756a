/* A collector of the host: THREADS threads read the statistics of all processes and control groups without a pause. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void get(const char *path) {
	char buf[65536];
	int fd = open(path, O_RDONLY);
	if (fd < 0) return;
	while (read(fd, buf, sizeof buf) > 0);
	close(fd);
}

static void processes(void) {
	static const char *files[] = { "stat", "status", "smaps_rollup", "smaps", "io", "cgroup", "net/dev" };
	DIR *d = opendir("/proc");
	struct dirent *e;
	char p[400];
	if (!d) return;
	while ((e = readdir(d))) {
		if (!isdigit(e->d_name[0])) continue;
		for (int i = 0; i < 7; i++) { snprintf(p, sizeof p, "/proc/%s/%s", e->d_name, files[i]); get(p); }
	}
	closedir(d);
}

static void groups(const char *dir, int depth) {
	static const char *files[] = { "memory.stat", "memory.numa_stat", "cpu.stat", "io.stat", "cpuacct.usage_percpu", "memory.usage_in_bytes" };
	char p[1000];
	DIR *d = opendir(dir);
	struct dirent *e;
	if (!d) return;
	for (int i = 0; i < 6; i++) { snprintf(p, sizeof p, "%s/%s", dir, files[i]); get(p); }
	while (depth < 8 && (e = readdir(d)))
		if (e->d_type == DT_DIR && e->d_name[0] != '.') { snprintf(p, sizeof p, "%s/%s", dir, e->d_name); groups(p, depth + 1); }
	closedir(d);
}

static void *collect(void *a) {
	for (;;) { processes(); groups("/sys/fs/cgroup", 0); get("/proc/slabinfo"); get("/proc/vmstat"); get("/proc/interrupts"); }
	return a;
}

int main(int argc, char **argv) {
	long threads = argc > 1 ? atol(argv[1]) : 3;
	pthread_t t;
	for (long i = 0; i < threads; i++) pthread_create(&t, 0, collect, 0);
	sleep(1);
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
