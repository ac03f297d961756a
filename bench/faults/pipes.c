// A log collector has 70 pipes of 1 MiB, and so uses up what all containers of one user may have together
// (fs.pipe-user-pages-soft): each new pipe of another container has room for two pages only (pipe(7)).
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(void) {
	int p[2], n = 0, size = 1 << 20;
	while (n < 400 && size >= 65536 && pipe(p) == 0) {
		n++;
		while (size >= 65536 && fcntl(p[1], F_SETPIPE_SZ, size) < 0) size /= 2;
	}
	fprintf(stderr, "%d pipes, the last has %d bytes\n", n, fcntl(p[1], F_GETPIPE_SZ));
	if (write(1, "ready\n", 6) < 0) return 1;
	for (;;) pause();
}
