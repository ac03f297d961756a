// fdleak START PER_S STOP: a service under the limit of 1024 open files opens an upload and does not close it.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

int main(int argc, char **argv) {
	if (argc < 4) return 2;
	int start = atoi(argv[1]), rate = atoi(argv[2]), stop = atoi(argv[3]), have = 3;
	struct rlimit r = {1024, 1024};
	setrlimit(RLIMIT_NOFILE, &r);
	int up = open("/tmp/upload", O_RDWR | O_CREAT, 0600);
	if (up < 0) { perror("/tmp/upload"); return 1; }
	for (; have < start; have++) if (open("/tmp/upload", O_RDONLY) < 0) break;
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		if (have < stop) { if (open("/tmp/upload", O_RDONLY) >= 0) have++; }
		usleep(1000000 / rate);
	}
}
