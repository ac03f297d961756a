// A monitoring agent outside of the containers reads the tables of sockets of each network namespace all the
// time (proc_pid_net(5)). Each table is a walk over the hash of all sockets of the host.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void read_all(const char *name) {
	char b[65536];
	int fd = open(name, O_RDONLY);
	if (fd < 0) return;
	while (read(fd, b, sizeof b) > 0);
	close(fd);
}
static void *agent(void *none) {
	const char *tables[] = {"tcp", "tcp6", "udp", "udp6", "sockstat", "netstat"};
	for (;;) {
		ino_t seen[256];
		int n = 0;
		DIR *d = opendir("/proc");
		for (struct dirent *e; d && (e = readdir(d));) {
			struct stat s;
			char name[300];
			int i;
			if (e->d_name[0] < '1' || e->d_name[0] > '9') continue;
			snprintf(name, sizeof name, "/proc/%s/ns/net", e->d_name);
			if (stat(name, &s)) continue;
			for (i = 0; i < n && seen[i] != s.st_ino; i++);
			if (i < n || n == 256) continue;
			seen[n++] = s.st_ino;
			for (unsigned t = 0; t < sizeof tables / sizeof *tables; t++) { snprintf(name, sizeof name, "/proc/%s/net/%s", e->d_name, tables[t]); read_all(name); }
		}
		if (d) closedir(d);
		usleep(1000);
	}
	return none;
}
int main(void) {
	pthread_t t;
	if (pthread_create(&t, NULL, agent, NULL) || write(1, "ready\n", 6) < 0) return 1;
	agent(NULL);
	return 0;
}
