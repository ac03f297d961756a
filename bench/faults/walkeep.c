// walkeep SEGMENTS EVERY_MS: a database writes its log in segments of 16 MiB and removes none, since a replica that
// is gone still holds its slot. At most SEGMENTS segments.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char block[1 << 20];
int main(int argc, char **argv) {
	if (argc < 3) return 2;
	int segments = atoi(argv[1]), every = atoi(argv[2]);
	char name[64];
	if (segments > 48) segments = 48;
	for (int s = 0; s < segments; s++) {
		snprintf(name, sizeof name, "/data/0000000100000000%08X", s);
		int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
		if (fd < 0) { perror(name); return 1; }
		if (s == 0) { printf("ready\n"); fflush(stdout); }
		for (int i = 0; i < 16; i++) {
			memset(block, s + i, sizeof block);
			if (write(fd, block, sizeof block) < 0) { perror("write"); break; }
			usleep(every * 1000 / 16);
		}
		close(fd);
	}
	for (;;) pause();
}
