// A service goes on writing 16 MiB a second into a log that logrotate has removed: no directory shows the
// file, but it fills the disk (unlink(2)). It stops at 1800 MiB.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(void) {
	static char b[1 << 20];
	int fd = open("/data/app.log", O_WRONLY | O_CREAT | O_APPEND, 0600);
	if (fd < 0 || unlink("/data/app.log")) { perror("log"); return 1; }
	memset(b, '.', sizeof b);
	if (write(1, "ready\n", 6) < 0) return 1;
	for (int i = 0; i < 1800; i++) { if (write(fd, b, sizeof b) < 0) { perror("write"); return 1; } usleep(62500); }
	for (;;) pause();
}
