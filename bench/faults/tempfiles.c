// tempfiles PER_S: a service spools each request in a temporary file and removes it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
	int rate = argc > 1 ? atoi(argv[1]) : 100;
	char b[8192];
	memset(b, 't', sizeof b);
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		char n[] = "/tmp/spool-XXXXXX";
		int fd = mkstemp(n);
		if (fd < 0) { perror(n); return 1; }
		if (write(fd, b, sizeof b) < 0 || lseek(fd, 0, SEEK_SET) < 0 || read(fd, b, sizeof b) < 0) { perror(n); return 1; }
		close(fd);
		unlink(n);
		usleep(1000000 / rate);
	}
}
