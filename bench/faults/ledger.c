// ledger: an embedded database of a container locks its file for each of 20 transactions a second, flock(2).
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(void) {
	prctl(PR_SET_NAME, "ledger-db");
	int fd = open("/data/ledger.db", O_RDWR | O_CREAT, 0600);
	if (fd < 0) { perror("ledger.db"); return 1; }
	printf("ready\n");
	fflush(stdout);
	for (int i = 0; i < 3; i++) if (fork() == 0) { prctl(PR_SET_PDEATHSIG, SIGKILL); break; }
	close(fd);
	fd = open("/data/ledger.db", O_RDWR);
	for (unsigned n = 0;; n++) {
		flock(fd, LOCK_EX);
		if (pwrite(fd, "transaction", 11, 4096 * (n % 256)) < 0) return 1;
		flock(fd, LOCK_UN);
		usleep(50000);
	}
}
