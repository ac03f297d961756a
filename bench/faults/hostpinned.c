// hostpinned MOST PER_SECOND: a batch system outside containers makes a memory control group for
// each job and removes it, but each job leaves a file in /dev/shm, tmpfs(5). Its page belongs to
// the group, which the kernel must therefore keep: cgroup-v2.rst, "Memory Ownership".
// host-undo.sh removes the files.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define FILES "/dev/shm/holdfast-fault-pinned"

static void put(const char *name, const char *text, int len) {
	int fd = open(name, O_WRONLY | O_CREAT, 0600);
	if (fd < 0 || write(fd, text, len) < 0) { perror(name); _exit(1); }
	close(fd);
}

int main(int argc, char **argv) {
	long most = argc > 1 ? atol(argv[1]) : 0, rate = argc > 2 ? atol(argv[2]) : 0;
	const char *root = access("/sys/fs/cgroup/memory", F_OK) ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
	char group[128], name[192];
	if (most < 1 || most > 5000 || rate < 1) { fprintf(stderr, "usage: hostpinned MOST PER_SECOND\n"); return 2; }
	if (mkdir(FILES, 0700)) { perror(FILES); return 1; }
	printf("ready\n");
	fflush(stdout);
	for (long n = 0; n < most; n++) {
		int status = 0;
		snprintf(group, sizeof group, "%s/holdfast-fault-pinned-%ld", root, n);
		if (mkdir(group, 0755)) { perror(group); return 1; }
		pid_t p = fork();
		if (p == 0) {
			snprintf(name, sizeof name, "%s/cgroup.procs", group);
			put(name, "0", 1);
			snprintf(name, sizeof name, FILES "/%ld", n);
			put(name, "result", 6);
			_exit(0);
		}
		if (p > 0) waitpid(p, &status, 0);
		if (rmdir(group) || status) { perror(group); return 1; }
		usleep(1000000 / rate);
	}
	for (;;) pause();
}
