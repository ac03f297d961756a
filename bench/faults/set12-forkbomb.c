// set12-forkbomb: a student tries :(){ :|:& };: in a sandbox. The limit of processes stops the growth, but not the attempts:
// each process forks in a loop, and some exit and make room. The first process only waits. At most 300 by its own count.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
	volatile int *count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (count == MAP_FAILED) return 1;
	if (fork() == 0) for (;;) {
		pid_t p = *count < 300 ? fork() : -1;
		if (p == 0) { __sync_add_and_fetch(count, 1); srandom(getpid()); }
		else if (p < 0) count[1] = 1;
		for (volatile int i = 0; i < 20000; i++);
		if (p < 0 && *count > 20 && random() % 500 == 0) { __sync_sub_and_fetch(count, 1); _exit(0); }
		while (waitpid(-1, NULL, WNOHANG) > 0);
	}
	while (!count[1]) usleep(100000);
	printf("bash: fork: retry: Resource temporarily unavailable\nready\n");
	fflush(stdout);
	for (;;) if (wait(NULL) < 0) usleep(100000);
}
