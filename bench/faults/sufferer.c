// sufferer KIND: a light, healthy service which others may disturb. KIND: cpu (2 ms of work every 10 ms),
// disk (a record and fsync(2) every 50 ms), batch (60 ms of work, 40 ms of sleep), draft (writes 6 MiB again 3 times a second).
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char buf[1 << 20];
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void work(double s) { for (double end = now() + s; now() < end;) for (volatile int i = 0; i < 1000; i++); }

int main(int argc, char **argv) {
	const char *k = argc > 1 ? argv[1] : "cpu";
	int fd = -1;
	if (!strcmp(k, "disk") || !strcmp(k, "draft")) {
		char name[64];
		snprintf(name, sizeof name, "/data/%s-%d", k, (int)getpid());
		fd = open(name, O_RDWR | O_CREAT, 0600);
		if (fd < 0) { perror(name); return 1; }
	}
	printf("ready\n");
	fflush(stdout);
	for (unsigned long n = 0;; n++) {
		if (!strcmp(k, "disk")) { if (pwrite(fd, buf, 4096, n % 2048 * 4096) != 4096 || fsync(fd)) return 1; usleep(50000); }
		else if (!strcmp(k, "draft")) { for (int i = 0; i < 6; i++) if (pwrite(fd, buf, sizeof buf, (off_t)i << 20) < 0) return 1; usleep(330000); }
		else if (!strcmp(k, "batch")) { work(0.06); usleep(40000); }
		else { work(0.002); usleep(8000); }
	}
}
