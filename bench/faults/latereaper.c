// latereaper: a job runner starts eight short jobs a second and reaps them all every three seconds.
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
	printf("ready\n");
	fflush(stdout);
	for (int n = 1;; n++) {
		if (fork() == 0) { for (volatile int i = 0; i < 100000; i++); _exit(0); }
		if (n % 24 == 0) while (waitpid(-1, NULL, WNOHANG) > 0);
		usleep(125000);
	}
}
