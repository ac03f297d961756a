// xattrs FILES WORKERS: an indexer writes tags to files without a pause, setxattr(2). Each tag is
// larger than an inode has room for, so each call allocates a block and writes to the journal.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long files = argc > 2 ? atol(argv[1]) : 0, workers = argc > 2 ? atol(argv[2]) : 0, worker = 0;
	static int fd[1000];
	char name[64], tag[1500];
	if (files < 1 || files > 1000 || workers < 1 || workers > 16) { fprintf(stderr, "usage: xattrs FILES WORKERS\n"); return 2; }
	for (long i = 0; i < files; i++) {
		snprintf(name, sizeof name, "/data/photo-%ld", i);
		fd[i] = open(name, O_CREAT | O_RDWR, 0600);
		if (fd[i] < 0) { perror(name); return 1; }
	}
	memset(tag, 't', sizeof tag);
	if (fsetxattr(fd[0], "user.tag", tag, sizeof tag, 0) != 0) { perror("fsetxattr"); return 1; }
	printf("ready\n");
	fflush(stdout);
	for (long i = 1; i < workers && worker == 0; i++)
		if (fork() == 0) worker = i;
	for (long n = 0;; n++) {
		snprintf(tag, 64, "%ld of %ld", n, worker);
		if (fsetxattr(fd[(n * workers + worker) % files], "user.tag", tag, sizeof tag, 0) != 0) { perror("fsetxattr"); return 1; }
	}
}
