// heapceil MIB: a runtime whose heap was sized by the limit of its container, and which has filled it.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv) {
	if (argc < 2) return 2;
	unsigned long size = atol(argv[1]) << 20, at = 0;
	char *heap = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (heap == MAP_FAILED) { perror("mmap"); return 1; }
	for (unsigned long i = 0; i < size; i += 4096) heap[i] = 1;
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		for (int i = 0; i < 200; i++, at = (at + 4096 * 31) % size) heap[at]++;
		usleep(20000);
	}
}
