// records PROCESSES HELD: processes lock records of one file, fcntl(2): F_SETLKW, as Samba's
// tdb and SQLite do. One process holds HELD separate ranges, so that the list of the file's locks
// is long, and each process that waits is checked for a deadlock under one lock of the host.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int fd;
static int lock(int type, long at) {
	struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
	return fcntl(fd, F_SETLKW, &l);
}

static void work(unsigned id) {
	for (unsigned n = id;; n++) {
		long slot = n % 4; // few records, in ascending order, so that none waits for ever
		lock(F_WRLCK, slot);
		lock(F_WRLCK, 4 + slot);
		lock(F_UNLCK, 4 + slot);
		lock(F_UNLCK, slot);
	}
}

int main(int argc, char **argv) {
	int processes = argc > 1 ? atoi(argv[1]) : 0;
	long held = argc > 2 ? atol(argv[2]) : 0;
	if (processes < 1 || processes > 200 || held < 0 || held > 20000) { fprintf(stderr, "usage: records PROCESSES HELD\n"); return 2; }
	fd = open("/data/table", O_RDWR | O_CREAT, 0600);
	if (fd < 0) { perror("open"); return 1; }
	for (long i = 0; i < held; i++) lock(F_WRLCK, 100 + 2 * i);
	for (int i = 0; i < processes; i++) if (fork() == 0) work(i);
	printf("ready\n");
	fflush(stdout);
	pause();
	return 0;
}
