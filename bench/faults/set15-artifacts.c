// artifacts MB_PER_S MAX_MB: writes the results of builds to files that nothing removes, up to MAX_MB.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
	if (argc < 3) return 2;
	long rate = atol(argv[1]), max = atol(argv[2]) / 2, n = 0;
	char *b = malloc(2 << 20), name[64];
	for (int i = 0; i < 2 << 20; i++) b[i] = rand();
	for (;; usleep(2000000 / rate)) {
		if (n < max) {
			snprintf(name, sizeof name, "/data/artifact-%ld.tar", n);
			int fd = open(name, O_CREAT | O_WRONLY, 0600);
			if (fd < 0 || write(fd, b, 2 << 20) < 0) perror(name);
			if (fd >= 0) close(fd);
		}
		if (++n == 4) { printf("ready\n"); fflush(stdout); }
	}
}
