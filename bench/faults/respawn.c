// respawn SERVICES: a supervisor starts its services again as soon as they end, without a pause; each finds its
// configuration missing and ends at once.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void start(void) {
	if (fork() == 0) { execl("/proc/self/exe", "app-server", "service", (char *)NULL); _exit(127); }
}
int main(int argc, char **argv) {
	if (argc > 1 && !strcmp(argv[1], "service")) return open("/etc/app-server/config.yaml", O_RDONLY) < 0 ? 78 : 0;
	int n = argc > 1 ? atoi(argv[1]) : 3;
	for (int i = 0; i < n && i < 16; i++) start();
	printf("ready\n");
	fflush(stdout);
	for (;;) { if (wait(NULL) > 0) start(); else { usleep(1000); start(); } }
}
