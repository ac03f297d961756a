/* A supervisor of WORKERS programs that end with an error after their start; it starts each again at once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int worker(void) {
	volatile char *heap = mmap(0, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < 4 << 20; i += 4096) heap[i] = i;
	return 1; /* the configuration is missing */
}

int main(int argc, char **argv) {
	if (argc > 1 && !strcmp(argv[1], "worker")) return worker();
	int workers = argc > 1 ? atoi(argv[1]) : 3;
	for (int i = 0; i < workers; i++) {
		if (fork()) continue;
		for (;;) {
			pid_t pid = fork();
			if (pid == 0) { execl("/proc/self/exe", "worker", "worker", (char *)0); _exit(127); }
			int status;
			if (pid > 0) waitpid(pid, &status, 0);
			else usleep(10000);
		}
	}
	sleep(1);
	puts("ready"); fflush(stdout);
	for (;;) { sleep(10); puts("worker exited with 1, respawned"); fflush(stdout); }
}
