// An image service leaves each thumbnail in a memfd that it never closes: 7 MiB a second that no mapping of a
// process shows (memfd_create(2)), up to 900 MiB of its 1 GiB.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(void) {
	static char b[1 << 20];
	memset(b, 6, sizeof b);
	if (write(1, "ready\n", 6) < 0) return 1;
	for (int i = 0; i < 900; i++) {
		int fd = memfd_create("thumbnail", 0);
		if (fd < 0 || write(fd, b, sizeof b) < 0) { perror("memfd"); break; }
		usleep(140000);
	}
	for (;;) pause();
}
