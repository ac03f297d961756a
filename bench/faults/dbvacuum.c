// dbvacuum: an automation service purges its database of 96 MiB every six seconds and vacuums it: it reads all pages,
// writes them to a temporary file, copies them back and flushes both.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char buf[1 << 16];
static const long size = 96L << 20;
static void fail(const char *w) { perror(w); exit(1); }
static void copy(int from, int to) {
	for (long o = 0; o < size; o += sizeof buf) {
		if (pread(from, buf, sizeof buf, o) < 0) fail("read");
		buf[random() % sizeof buf]++;
		if (pwrite(to, buf, sizeof buf, o) < 0) fail("write");
	}
	if (fsync(to)) fail("fsync");
}

int main(void) {
	int db = open("/data/home.db", O_RDWR | O_CREAT, 0600);
	if (db < 0) fail("open");
	for (long o = 0; o < size; o += sizeof buf) { memset(buf, (int)(o >> 16), sizeof buf); if (pwrite(db, buf, sizeof buf, o) < 0) fail("write"); }
	fsync(db);
	printf("ready\n");
	fflush(stdout);
	for (;; sleep(5)) {
		int t = open("/data/home.db-vacuum", O_RDWR | O_CREAT | O_TRUNC, 0600);
		if (t < 0) fail("open");
		copy(db, t);
		copy(t, db);
		close(t);
		unlink("/data/home.db-vacuum");
	}
}
