// nightly SECONDS: a healthy nightly report: calculates at half a CPU for SECONDS more, writes its result, and then waits for the next night.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }
int main(int argc, char **argv) {
	double end = now() + (argc > 1 ? atof(argv[1]) : 20) * 1000;
	printf("ready\n"); fflush(stdout);
	while (now() < end) { for (double t = now() + 10; now() < t;) for (volatile int i = 0; i < 2000; i++); usleep(10000); }
	FILE *f = fopen("/data/report.csv", "w");
	if (f) { for (int i = 0; i < 10000; i++) fprintf(f, "%d,%d\n", i, i * 7); fclose(f); }
	printf("report is done\n"); fflush(stdout);
	pause();
	return 0;
}
