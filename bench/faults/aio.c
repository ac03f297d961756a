// aio PERCENT PER_SECOND: a database makes a context for 1,024 asynchronous requests for each
// of its files and does not destroy it, io_setup(2). All contexts of the host share one limit,
// /proc/sys/fs/aio-max-nr, of which it takes PERCENT.
#define _GNU_SOURCE
#include <linux/aio_abi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long percent = argc > 1 ? atol(argv[1]) : 0, rate = argc > 2 ? atol(argv[2]) : 0, most = 65536, n = 0;
	if (percent < 1 || percent > 99 || rate < 1) { fprintf(stderr, "usage: aio PERCENT PER_SECOND\n"); return 2; }
	FILE *f = fopen("/proc/sys/fs/aio-max-nr", "r");
	if (!f || fscanf(f, "%ld", &most) != 1 || most > 1 << 20) { fprintf(stderr, "aio-max-nr is unknown or too large\n"); return 1; }
	most = most * percent / 100 / 1024;
	printf("ready\n");
	fflush(stdout);
	for (aio_context_t c = 0; n < most && syscall(SYS_io_setup, 1024, &c) == 0; c = 0, n++) usleep(1000000 / rate);
	fprintf(stderr, "%ld contexts\n", n);
	for (;;) pause();
}
