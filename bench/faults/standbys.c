// standbys: one of thirty processes is the leader and holds a file lock; the others wait for it, as standbys do, without load.
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(void) {
	int fd = open("/tmp/leader", O_RDWR | O_CREAT, 0600);
	if (fd < 0 || flock(fd, LOCK_EX)) { perror("leader"); return 1; }
	for (int i = 0; i < 29; i++) if (fork() == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		prctl(PR_SET_NAME, "standby");
		int f = open("/tmp/leader", O_RDWR);
		flock(f, LOCK_EX);
		for (;;) pause();
	}
	prctl(PR_SET_NAME, "leader");
	printf("ready\n");
	fflush(stdout);
	for (;;) { for (volatile int i = 0; i < 200000; i++); usleep(50000); }
}
