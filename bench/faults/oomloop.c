// A supervisor starts a worker again and again that needs more memory than its container may have, so that
// the kernel kills it each time after a few hundred milliseconds.
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
	if (write(1, "ready\n", 6) < 0) return 1;
	for (;;) {
		pid_t p = fork();
		if (p == 0) {
			int fd = open("/proc/self/oom_score_adj", O_WRONLY);
			if (fd >= 0) { if (write(fd, "1000", 4) < 0) _exit(1); close(fd); }
			for (int i = 0; i < 600; i++) { char *m = malloc(1 << 20); if (!m) break; memset(m, i | 1, 1 << 20); }
			_exit(1);
		}
		if (p > 0) waitpid(p, NULL, 0);
		usleep(500000);
	}
}
