// rotated MIB PER_SECOND: a service goes on writing to its log after logrotate(8) has removed it,
// because it was not told to open the log again. df(1) shows the space as used, du(1) does not:
// unlink(2). It writes PER_SECOND mebibytes a second, up to MIB.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char block[1 << 20];

int main(int argc, char **argv) {
	long most = argc > 1 ? atol(argv[1]) : 0, rate = argc > 2 ? atol(argv[2]) : 0;
	if (most < 1 || most > 2000 || rate < 1) { fprintf(stderr, "usage: rotated MIB PER_SECOND\n"); return 2; }
	memset(block, 'a', sizeof block);
	int fd = open("/data/service.log", O_WRONLY | O_CREAT | O_APPEND, 0600);
	if (fd < 0 || unlink("/data/service.log")) { perror("/data/service.log"); return 1; }
	printf("ready\n");
	fflush(stdout);
	for (long n = 0; n < most; n++) {
		if (write(fd, block, sizeof block) < 0) { perror("write"); return 1; }
		usleep(1000000 / rate);
	}
	for (;;) pause();
}
