// thumbs MIB EVERY_MS: a worker starts a converter for each picture; it needs MIB MiB, more than the container has, and
// is killed; the worker tries again.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
	if (argc < 3) return 2;
	unsigned long size = atol(argv[1]) << 20;
	if (size > 400UL << 20) size = 400UL << 20;
	for (int n = 0;; n++) {
		if (fork() == 0) {
			int fd = open("/proc/self/oom_score_adj", O_WRONLY);
			if (fd >= 0) { if (write(fd, "900", 3) < 0) perror("oom_score_adj"); close(fd); }
			char *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			if (m != MAP_FAILED) for (unsigned long i = 0; i < size; i += 4096) m[i] = 1;
			_exit(0);
		}
		if (n == 0) { printf("ready\n"); fflush(stdout); }
		wait(NULL);
		usleep(atoi(argv[2]) * 1000);
	}
}
