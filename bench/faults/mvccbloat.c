// mvccbloat MIB_A_SECOND MAX_MIB: a database updates the same 20,000 rows again and again while a forgotten transaction is open:
// each update appends a new version of the row to the table's file, and none is ever reused. It stops growing at MAX_MIB.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
	long rate = argc > 1 ? atol(argv[1]) : 6, max = (argc > 2 ? atol(argv[2]) : 700) << 20, end = 0;
	static char page[8192];
	int f = open("/data/16384.1259", O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (f < 0) { perror("/data"); return 1; }
	memset(page, 'r', sizeof page);
	printf("ready\n");
	fflush(stdout);
	for (unsigned n = 0;; n++) {
		for (long i = 0; i < rate * 128 / 10; i++) {
			if (end >= max) { usleep(100000); break; }
			if (pwrite(f, page, sizeof page, end) < 0) { perror("write"); break; }
			end += sizeof page;
		}
		if (n % 10 == 9) fdatasync(f);
		usleep(100000);
	}
}
