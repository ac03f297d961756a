// bigfork MIB: a task queue with MIB MiB of loaded data starts a helper by fork(2) and exec for each task: the kernel
// copies all of its page tables each time, and each page that it writes afterwards.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
	if (argc > 1 && !strcmp(argv[1], "task")) return 0;
	unsigned long size = (argc > 1 ? atol(argv[1]) : 256) << 20;
	if (size > 512UL << 20) size = 512UL << 20;
	char *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m == MAP_FAILED) { perror("mmap"); return 1; }
	madvise(m, size, MADV_NOHUGEPAGE);
	for (unsigned long i = 0; i < size; i += 4096) m[i] = 1;
	printf("ready\n");
	fflush(stdout);
	for (unsigned long n = 0;; n++) {
		pid_t p = fork();
		if (p == 0) { execl("/proc/self/exe", "helper", "task", (char *)NULL); _exit(1); }
		for (unsigned long k = 0; k < 2000; k++) m[(n * 7919 + k * 37) % (size >> 12) << 12]++;
		if (p > 0) waitpid(p, NULL, 0);
		usleep(3000);
	}
}
