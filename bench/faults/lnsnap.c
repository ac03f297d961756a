// lnsnap FILES: a backup keeps snapshots of a tree as hard links: it links each of FILES files into a new tree, syncs its directories,
// and removes the oldest tree, without a pause. Each link and removal changes an inode and a directory in the journal.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#define PER 250
static void sync_dir(const char *n) { int d = open(n, O_RDONLY | O_DIRECTORY); if (d >= 0) { fsync(d); close(d); } }
int main(int argc, char **argv) {
	int files = argc > 1 ? atoi(argv[1]) : 4000;
	char a[80], b[80];
	mkdir("/data/tree", 0700);
	for (int i = 0; i < files; i++) {
		if (i % PER == 0) { snprintf(a, sizeof a, "/data/tree/%d", i / PER); mkdir(a, 0700); }
		snprintf(a, sizeof a, "/data/tree/%d/%d", i / PER, i);
		int f = open(a, O_WRONLY | O_CREAT, 0600);
		if (f < 0) { perror(a); return 1; }
		if (write(f, a, 64) < 0) perror("write");
		close(f);
	}
	printf("ready\n");
	fflush(stdout);
	for (unsigned s = 0;; s++) {
		snprintf(b, sizeof b, "/data/snap.%u", s);
		mkdir(b, 0700);
		for (int i = 0; i < files; i++) {
			if (i % PER == 0) { snprintf(b, sizeof b, "/data/snap.%u/%d", s, i / PER); mkdir(b, 0700); }
			snprintf(a, sizeof a, "/data/tree/%d/%d", i / PER, i);
			snprintf(b, sizeof b, "/data/snap.%u/%d/%d", s, i / PER, i);
			if (link(a, b)) perror("link");
			if (i % PER == PER - 1) { snprintf(b, sizeof b, "/data/snap.%u/%d", s, i / PER); sync_dir(b); }
		}
		if (s < 3) continue;
		for (int i = 0; i < files; i++) {
			snprintf(b, sizeof b, "/data/snap.%u/%d/%d", s - 3, i / PER, i);
			unlink(b);
			if (i % PER == PER - 1 || i == files - 1) { snprintf(b, sizeof b, "/data/snap.%u/%d", s - 3, i / PER); rmdir(b); }
		}
		snprintf(b, sizeof b, "/data/snap.%u", s - 3);
		rmdir(b);
		sync_dir("/data");
	}
}
