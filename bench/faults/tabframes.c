// tabframes MIB FPS: a browser under test holds MIB of frames in /dev/shm (64 MiB in containers) in four files that it overwrites FPS times a second; nothing grows.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
	long size = (argc > 1 ? atol(argv[1]) : 32) * (1 << 20) / 4;
	int fps = argc > 2 ? atoi(argv[2]) : 10;
	char *m[4], n[64];
	for (int i = 0; i < 4; i++) {
		snprintf(n, sizeof n, "/dev/shm/.org.browser.%d", i);
		int f = open(n, O_RDWR | O_CREAT | O_TRUNC, 0600);
		if (f < 0 || ftruncate(f, size)) { perror(n); return 1; }
		m[i] = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
		if (m[i] == MAP_FAILED) { perror("mmap"); return 1; }
		close(f);
	}
	printf("ready\n");
	fflush(stdout);
	for (unsigned k = 0;; k++) { for (long i = 0; i < size; i += 512) m[k % 4][i] = k; usleep(1000000 / fps); }
}
