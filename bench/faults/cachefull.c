// Healthy: a service reads through its archive of 600 MiB at 3 MiB a second. Its container stays at its memory
// limit, but with clean page cache only.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(void) {
	static char b[1 << 18];
	int fd = open("/data/archive", O_RDWR | O_CREAT, 0600);
	if (fd < 0) { perror("open"); return 1; }
	for (int i = 0; i < 2400; i++) {
		if (write(fd, b, sizeof b) < 0) { perror("write"); return 1; }
		if (i % 64 == 63) fdatasync(fd);
	}
	if (write(1, "ready\n", 6) < 0) return 1;
	for (long i = 0;; i++) { if (pread(fd, b, sizeof b, (i % 2400) * (long)sizeof b) < 0) return 1; usleep(83000); }
}
