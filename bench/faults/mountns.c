// mountns MOST PER_SECOND MOUNTS: a volume plug-in opens a mount namespace for each request and
// forgets to close it, mount_namespaces(7) and setns(2). Each has its own copy of all mounts,
// MOUNTS of which are volumes.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long most = argc > 1 ? atol(argv[1]) : 0, rate = argc > 2 ? atol(argv[2]) : 0, mounts = argc > 3 ? atol(argv[3]) : 0, n = 0;
	char name[64];
	if (most < 1 || most > 900 || rate < 1 || mounts < 0 || mounts > 100) { fprintf(stderr, "usage: mountns MOST PER_SECOND MOUNTS\n"); return 2; }
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) { perror("unshare"); return 1; }
	for (long i = 0; i < mounts; i++) {
		snprintf(name, sizeof name, "/tmp/volume-%ld", i);
		mkdir(name, 0700);
		if (mount("/proc", name, NULL, MS_BIND, NULL)) { perror(name); return 1; }
	}
	printf("ready\n");
	fflush(stdout);
	for (; n < most; n++) {
		int to[2], fd;
		char c;
		if (pipe(to)) break;
		pid_t p = fork();
		if (p == 0) { // has the namespace until its parent has opened it
			close(to[0]);
			if (unshare(CLONE_NEWNS) == 0 && write(to[1], "x", 1) == 1) pause();
			_exit(1);
		}
		close(to[1]);
		snprintf(name, sizeof name, "/proc/%d/ns/mnt", p);
		fd = p > 0 && read(to[0], &c, 1) == 1 ? open(name, O_RDONLY) : -1;
		close(to[0]);
		if (p > 0) { kill(p, 9); waitpid(p, NULL, 0); }
		if (fd < 0) break;
		usleep(1000000 / rate);
	}
	fprintf(stderr, "%ld namespaces\n", n);
	for (;;) pause();
}
