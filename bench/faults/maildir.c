// maildir MESSAGES: a mail server reads a directory of MESSAGES files again and again to look for
// new ones, getdents(2). Each pass is a few calls that the kernel works on for long.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long messages = argc > 1 ? atol(argv[1]) : 0;
	static char buffer[1 << 20];
	char name[64];
	if (messages < 1 || messages > 100000) { fprintf(stderr, "usage: maildir MESSAGES\n"); return 2; }
	if (mkdir("/data/cur", 0700) != 0) { perror("/data/cur"); return 1; }
	for (long i = 0; i < messages; i++) {
		snprintf(name, sizeof name, "/data/cur/%ld.M%ldP1.mail:2,S", 1700000000 + i, i * 7919 % 1000000);
		int fd = open(name, O_CREAT | O_WRONLY, 0600);
		if (fd < 0) { perror(name); return 1; }
		close(fd);
	}
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		int fd = open("/data/cur", O_RDONLY | O_DIRECTORY);
		if (fd < 0) { perror("/data/cur"); return 1; }
		while (syscall(SYS_getdents64, fd, buffer, sizeof buffer) > 0) {}
		close(fd);
	}
}
