// hostwal PROPOSERS DIR: the key-value store of the control plane runs on the host and shares its disk with the containers; each proposal is
// appended to the log and synced, fdatasync(2). The log has 16 MiB for each proposer and is then used again.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
static const char *dir;
static void *propose(void *p) {
	char n[300];
	static char b[8192];
	snprintf(n, sizeof n, "%s/wal-%ld", dir, (long)p);
	int f = open(n, O_RDWR | O_CREAT, 0600);
	if (f < 0) { perror(n); exit(1); }
	for (long at = 0;; at = (at + sizeof b) % (16 << 20)) {
		if (pwrite(f, b, sizeof b, at) < 0) perror("write");
		fdatasync(f);
	}
	return p;
}
int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 6;
	dir = argc > 2 ? argv[2] : "/var/tmp/control-plane-wal";
	mkdir(dir, 0700);
	for (long i = 0; i < n; i++) { pthread_t t; pthread_create(&t, NULL, propose, (void *)i); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
