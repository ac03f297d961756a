// smallsnapshot: a cache of 40 MiB forks every 5 s and the child writes 8 MiB of it in pieces with pauses, as it should.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
	size_t n = 40u << 20;
	char *m = malloc(n);
	memset(m, 1, n);
	prctl(PR_SET_NAME, "valkey");
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		pid_t p = fork();
		if (p == 0) {
			int fd = open("/data/dump.rdb", O_WRONLY | O_CREAT | O_TRUNC, 0600);
			for (int i = 0; fd >= 0 && i < 32; i++) { if (write(fd, m + i * (256 << 10), 256 << 10) < 0) _exit(1); usleep(30000); }
			_exit(0);
		}
		for (int i = 0; i < 500; i++) { m[(size_t)random() % n]++; usleep(10000); }
		if (p > 0) waitpid(p, NULL, 0);
	}
}
