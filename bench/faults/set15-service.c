// service cpu RATE MS | commit RATE | read RATE: a small healthy service. RATE times a second it calculates for MS
// milliseconds, commits a record to /data, or reads a record of a file in /data from the disk. Every 5 s it writes its mean and its slowest request.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }
static double cpu(void) { struct timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }
int main(int argc, char **argv) {
	if (argc < 3) return 2;
	double rate = atof(argv[2]), ms = argc > 3 ? atof(argv[3]) : 1, slow = 0, sum = 0, last = now();
	int fd = -1, n = 0;
	char *b;
	if (posix_memalign((void **)&b, 4096, 1 << 20)) return 1;
	memset(b, 7, 1 << 20);
	if (strcmp(argv[1], "cpu")) {
		fd = open("/data/records", O_RDWR | O_CREAT | (argv[1][0] == 'r' ? O_DIRECT : 0), 0600);
		if (fd < 0) { perror("open"); return 1; }
		for (int i = 0; i < 64; i++) if (pwrite(fd, b, 1 << 20, (off_t)i << 20) < 0) { perror("write"); return 1; }
		fsync(fd);
	}
	printf("ready\n"); fflush(stdout);
	for (double next = now();; next += 1000 / rate) {
		double t = now();
		if (next > t) usleep((next - t) * 1000); else if (t - next > 1000) next = t;
		t = now();
		off_t at = (off_t)(rand() % 16000) * 4096;
		if (fd < 0) { for (double c = cpu(); cpu() - c < ms;) for (volatile int i = 0; i < 3000; i++); }
		else if (argv[1][0] == 'c') { if (pwrite(fd, b, 4096, at) < 0 || fdatasync(fd)) perror("commit"); }
		else if (pread(fd, b, 4096, at) < 0) perror("read");
		n++; sum += now() - t;
		if (now() - t > slow) slow = now() - t;
		if (now() - last > 5000) { printf("%d requests, mean %.2f ms, slowest %.1f ms\n", n, sum / n, slow); fflush(stdout); n = 0; sum = 0; slow = 0; last = now(); }
	}
}
