// lockspin PROCESSES: build workers take a lock by making a file with O_EXCL and try again at once when it exists.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 8;
	unlink("/data/.build.lock");
	printf("ready\n");
	fflush(stdout);
	for (int i = 1; i < n && i < 32; i++) if (fork() == 0) break;
	for (;;) {
		int fd = open("/data/.build.lock", O_WRONLY | O_CREAT | O_EXCL, 0600);
		if (fd < 0) continue;
		close(fd);
		usleep(5000); // a download under the lock
		unlink("/data/.build.lock");
	}
}
