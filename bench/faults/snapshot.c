// A key-value store keeps 600 MiB in memory, changes it all the time, and every three seconds forks a child that
// writes all of it to disk, as Redis does with BGSAVE.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SIZE (600L << 20)
int main(void) {
	char *m = malloc(SIZE);
	pid_t child = 0;
	time_t last = 0;
	if (!m) return 1;
	memset(m, 5, SIZE);
	if (write(1, "ready\n", 6) < 0) return 1;
	for (;;) {
		for (int i = 0; i < 200; i++) m[((unsigned long)random() * 4096) % SIZE]++;
		usleep(2000);
		if (child > 0 && waitpid(child, NULL, WNOHANG) == child) child = 0;
		if (child == 0 && time(NULL) >= last + 3) {
			last = time(NULL);
			child = fork();
			if (child == 0) {
				int fd = open("/data/dump.tmp", O_WRONLY | O_CREAT | O_TRUNC, 0600);
				if (fd < 0) _exit(1);
				for (long i = 0; i < SIZE; i += 1 << 20) if (write(fd, m + i, 1 << 20) < 0 || (i % (32L << 20) == 0 && fdatasync(fd))) _exit(1);
				fsync(fd);
				_exit(rename("/data/dump.tmp", "/data/dump.rdb") != 0);
			}
		}
	}
}
