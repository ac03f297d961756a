/* A service with a worker that loads a whole table; when the kernel kills the worker, the service starts another. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
	int st, ready = 0;
	for (;;) {
		pid_t p = fork();
		if (p == 0) {
			int o = open("/proc/self/oom_score_adj", O_WRONLY);
			if (o >= 0) { if (write(o, "500", 3) < 0) perror("oom_score_adj"); close(o); }
			for (;;) {
				size_t n = 4 << 20;
				volatile char *m = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
				for (size_t i = 0; m != MAP_FAILED && i < n; i += 4096) m[i] = 1;
				usleep(25000);
			}
		}
		if (!ready) { ready = 1; sleep(2); puts("ready"); fflush(stdout); }
		if (p < 0 || waitpid(p, &st, 0) < 0) { sleep(1); continue; }
		printf("worker was ended by signal %d, starts again\n", WIFSIGNALED(st) ? WTERMSIG(st) : 0);
		fflush(stdout);
	}
}
