// set12-make JOBS [PAUSE_MS]: a build, make -jJOBS: each compiler is a new process that takes 16 MiB, computes for 0.2 s and
// writes an object file of 200 KiB to /data.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static double cpu(void) { struct timespec t; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); return t.tv_sec + t.tv_nsec / 1e9; }
int main(int argc, char **argv) {
	if (argc > 2 && !strcmp(argv[1], "cc1")) {
		size_t n = 16 << 20;
		char *m = malloc(n);
		if (!m) return 1;
		memset(m, 1, n);
		for (size_t i = 0; cpu() < 0.2; i = (i * 2654435761u + 97) % n) m[i]++;
		int fd = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC, 0600);
		if (fd < 0 || write(fd, m, 200 << 10) < 0) return 1;
		return 0;
	}
	int jobs = argc > 1 ? atoi(argv[1]) : 4, pause_ms = argc > 2 ? atoi(argv[2]) : 0, running = 0;
	if (jobs < 1 || jobs > 64) return 2;
	for (unsigned n = 0;; n++) {
		char name[64];
		snprintf(name, sizeof name, "/data/unit-%u.o", n % 200);
		pid_t p = fork();
		if (p == 0) { execl("/proc/self/exe", "cc1", "cc1", name, (char *)NULL); _exit(127); }
		if (p > 0) running++;
		if (n == 2) { printf("ready\n"); fflush(stdout); }
		if (n % 100 == 99) { printf("[%u/5000] CC unit\n", n + 1); fflush(stdout); }
		while (running >= jobs && wait(NULL) > 0) running--;
		if (pause_ms) usleep(pause_ms * 1000);
	}
}
