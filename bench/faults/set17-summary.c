/* A healthy nightly report: calculates at a third of a CPU and writes 100 KiB a second; after 60 seconds it is done. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
int main(void) {
	static char b[10240];
	volatile double x = 1;
	struct timespec a, n;
	memset(b, 'r', sizeof b);
	int fd = open("/data/report.csv", O_CREAT | O_WRONLY | O_TRUNC, 0644);
	puts("ready"); fflush(stdout);
	clock_gettime(CLOCK_MONOTONIC, &a);
	for (;;) {
		clock_gettime(CLOCK_MONOTONIC, &n);
		if (n.tv_sec - a.tv_sec > 60) break;
		struct timespec s, e;
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &s);
		do {
			for (int i = 0; i < 10000; i++) x = x * 1.0000001 + 0.5;
			clock_gettime(CLOCK_THREAD_CPUTIME_ID, &e);
		} while ((e.tv_sec - s.tv_sec) * 1e3 + (e.tv_nsec - s.tv_nsec) / 1e6 < 33);
		if (fd >= 0 && write(fd, b, sizeof b) < 0) perror("write");
		usleep(67000);
	}
	puts("report is done"); fflush(stdout);
	for (;;) pause();
}
