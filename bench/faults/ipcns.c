// ipcns PER_SECOND WORKERS: a sandbox makes an IPC namespace for each of its short runs, unshare(2),
// ipc_namespaces(7). The kernel frees each with a mount and its objects in the background. With 0 a second
// the sandbox does not pause.
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long rate = argc > 2 ? atol(argv[1]) : 0, workers = argc > 2 ? atol(argv[2]) : 0;
	if (rate < 0 || rate > 5000 || workers < 1 || workers > 8) { fprintf(stderr, "usage: ipcns PER_SECOND WORKERS\n"); return 2; }
	if (unshare(CLONE_NEWIPC) != 0) { perror("unshare"); return 1; }
	printf("ready\n");
	fflush(stdout);
	for (long i = 1; i < workers; i++)
		if (fork() == 0) break;
	for (;;) {
		// At the limit of namespaces the kernel has to free some first.
		if (unshare(CLONE_NEWIPC) != 0) usleep(100000);
		if (rate > 0) usleep(1000000 / rate);
	}
}
