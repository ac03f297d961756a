// heapcycle LOW_MIB HIGH_MIB PERIOD_S: a runtime whose heap grows until its collector gives it back.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv) {
	if (argc < 4) return 2;
	unsigned long low = atol(argv[1]) << 20, high = atol(argv[2]) << 20, at = low, step = (high - low) / (atol(argv[3]) * 20);
	char *m = mmap(NULL, high, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m == MAP_FAILED) { perror("mmap"); return 1; }
	step &= ~4095UL;
	for (unsigned long i = 0; i < low; i += 4096) m[i] = 1;
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		if (at + step > high) { madvise(m + low, high - low, MADV_DONTNEED); at = low; }
		for (unsigned long i = at; i < at + step && i < high; i += 4096) m[i] = 1;
		at += step;
		usleep(50000);
	}
}
