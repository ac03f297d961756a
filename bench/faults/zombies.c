// The first process of a container starts a helper 14 times a second and never waits for one: the
// dead helpers keep their numbers until the container may have no more processes (wait(2), NOTES).
#include <unistd.h>

int main(void) {
	if (write(1, "ready\n", 6) < 0) return 1;
	for (int n = 0;; usleep(70000)) {
		if (n >= 1500) continue;
		pid_t p = fork();
		if (p == 0) _exit(0);
		if (p > 0) n++;
	}
}
