// A database reserves asynchronous requests until the host has none left (fs.aio-max-nr), so that databases
// in other containers cannot start: io_setup(2) gives EAGAIN.
#define _GNU_SOURCE
#include <linux/aio_abi.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void) {
	int n = 0, size = 1024;
	while (n < 2000 && size >= 16) {
		aio_context_t c = 0;
		if (syscall(SYS_io_setup, size, &c)) size /= 2;
		else n++;
	}
	fprintf(stderr, "%d contexts\n", n);
	if (write(1, "ready\n", 6) < 0) return 1;
	for (;;) pause();
}
