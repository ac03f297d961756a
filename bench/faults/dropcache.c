// dropcache WORKERS MIB: a backup reads the file of a database that runs, in pieces of 64 KiB, and
// drops each from the page cache so as not to displace others, posix_fadvise(2):
// POSIX_FADV_DONTNEED. The database has the file mapped, so its pages cannot be dropped, and for
// each piece the kernel empties the lists of pages of all CPUs and waits for it.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PIECE (64 << 10)

static void backup(int fd, off_t size) {
	static char b[PIECE];
	for (off_t at = 0;; at = (at + PIECE) % size) {
		if (pread(fd, b, PIECE, at) < 0) _exit(1);
		posix_fadvise(fd, at, PIECE, POSIX_FADV_DONTNEED);
	}
}

int main(int argc, char **argv) {
	int workers = argc > 1 ? atoi(argv[1]) : 0, mib = argc > 2 ? atoi(argv[2]) : 0;
	if (workers < 1 || workers > 16 || mib < 1 || mib > 256) { fprintf(stderr, "usage: dropcache WORKERS MIB\n"); return 2; }
	off_t size = (off_t)mib << 20;
	int fd = open("/data/table", O_RDWR | O_CREAT, 0600);
	if (fd < 0 || posix_fallocate(fd, 0, size)) { perror("/data/table"); return 1; }
	char *table = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (table == MAP_FAILED) { perror("mmap"); return 1; }
	memset(table, 7, size);
	if (msync(table, size, MS_SYNC)) { perror("msync"); return 1; }
	for (off_t i = 0; i < size; i += 4096) if (((volatile char *)table)[i] != 7) return 1;
	for (int i = 0; i < workers; i++) if (fork() == 0) backup(fd, size);
	printf("ready\n");
	fflush(stdout);
	pause();
	return 0;
}
