// set13-hdb: a healthy database under load: 300 reads a second from its cache, some work for each, and a commit with
// fdatasync(2) thirty times a second; a checkpoint of 8 MiB every 3 s.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static char page[8192], big[1 << 20];
static void fail(const char *what) { perror(what); exit(1); }
int main(void) {
	const long pages = 12800; // 100 MiB
	int t = open("/data/heap", O_RDWR | O_CREAT, 0600), w = open("/data/log", O_WRONLY | O_CREAT, 0600);
	prctl(PR_SET_NAME, "postgres");
	if (t < 0 || w < 0) fail("open");
	for (long i = 0; i < 100; i++) { memset(big, (int)i, sizeof big); if (pwrite(t, big, sizeof big, i << 20) < 0) fail("write"); }
	fsync(t);
	printf("ready\n");
	fflush(stdout);
	for (unsigned long n = 0;; n++) {
		if (pread(t, page, sizeof page, random() % pages * 8192) < 0) fail("read");
		for (volatile int i = 0; i < 200000; i++);
		if (n % 10 == 0) { if (pwrite(w, page, 4096, (off_t)(n / 10 % 2048) * 4096) < 0) fail("write"); fdatasync(w); }
		if (n % 900 == 899) { for (int i = 0; i < 8; i++) if (pwrite(t, big, sizeof big, (random() % 100) << 20) < 0) fail("write"); fdatasync(t); }
		usleep(3000);
	}
}
