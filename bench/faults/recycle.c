// recycle WORKERS SECONDS: a preforking server replaces each worker after SECONDS seconds of service (max_requests).
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void worker(double seconds) {
	if (fork()) return;
	for (int i = 0; i < seconds * 50; i++) { for (volatile int k = 0; k < 200000; k++); usleep(20000); }
	_exit(0);
}
int main(int argc, char **argv) {
	if (argc < 3) return 2;
	for (int i = 0; i < atoi(argv[1]) && i < 16; i++) worker(atof(argv[2]) * (i + 1) / atoi(argv[1]));
	printf("ready\n");
	fflush(stdout);
	for (;;) if (wait(NULL) > 0) worker(atof(argv[2])); else sleep(1);
}
