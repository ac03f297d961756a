// prealloc MIB WORKERS: a download service reserves each file, gives parts back and drops the file,
// fallocate(2). The file system changes its maps and its journal, and no data is written.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long mib = argc > 2 ? atol(argv[1]) : 0, workers = argc > 2 ? atol(argv[2]) : 0, worker = 0;
	const off_t part = 128 << 10;
	char name[64];
	if (mib < 1 || workers < 1 || workers > 8 || mib * workers > 1024) { fprintf(stderr, "usage: prealloc MIB WORKERS\n"); return 2; }
	printf("ready\n");
	fflush(stdout);
	for (long i = 1; i < workers && worker == 0; i++)
		if (fork() == 0) worker = i;
	snprintf(name, sizeof name, "/data/part-%ld", worker);
	int fd = open(name, O_CREAT | O_RDWR, 0600);
	if (fd < 0) { perror(name); return 1; }
	for (;;) {
		if (fallocate(fd, 0, 0, (off_t)mib << 20) != 0) { perror("fallocate"); return 1; }
		for (off_t at = 0; at < (off_t)mib << 20; at += 2 * part)
			if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, part) != 0) { perror("punch"); return 1; }
		if (ftruncate(fd, 0) != 0) { perror("ftruncate"); return 1; }
	}
}
