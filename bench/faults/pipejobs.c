// pipejobs: a service hands the data of each of its 20 jobs a second, 1 MiB, to a helper process through a new pipe.
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static char buf[1 << 16];
int main(void) {
	printf("ready\n");
	fflush(stdout);
	for (;; usleep(50000)) {
		int p[2];
		if (pipe(p)) { perror("pipe"); sleep(1); continue; }
		if (fork() == 0) { close(p[1]); while (read(p[0], buf, sizeof buf) > 0); _exit(0); }
		close(p[0]);
		for (int i = 0; i < 16; i++) if (write(p[1], buf, sizeof buf) < 0) break;
		close(p[1]);
		wait(NULL);
	}
}
