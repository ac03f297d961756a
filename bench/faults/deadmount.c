// deadmount MOST PER_SECOND: the server of a network file system does not answer, and a monitor asks
// for the file system's free space in a new process each time, statfs(2). The processes wait in
// state D. The mount is in a mount namespace of its own, so no other process can meet it.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long most = argc > 2 ? atol(argv[1]) : 0, rate = argc > 2 ? atol(argv[2]) : 0;
	char options[128];
	struct statfs f;
	if (most < 1 || most > 500 || rate < 1) { fprintf(stderr, "usage: deadmount MOST PER_SECOND\n"); return 2; }
	if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) { perror("mount namespace"); return 1; }
	int server = open("/dev/fuse", O_RDWR);
	if (server < 0) { perror("/dev/fuse"); return 1; }
	snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", server);
	if (mount("files.example", "/mnt", "fuse", MS_NOSUID | MS_NODEV, options) != 0) { perror("mount"); return 1; }
	printf("ready\n");
	fflush(stdout);
	for (long i = 0; i < most; i++) {
		pid_t pid = fork();
		if (pid < 0) { perror("fork"); return 1; }
		if (pid == 0) _exit(statfs("/mnt", &f) != 0);
		usleep(1000000 / rate);
	}
	for (;;) pause();
}
