// cpuinfo THREADS: a service asks for the CPUs of the machine on each request, as os.cpus() does: it reads
// /proc/cpuinfo, /proc/stat and the CPU files of sysfs.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void slurp(const char *name) {
	char b[4096];
	int fd = open(name, O_RDONLY);
	if (fd < 0) return;
	while (read(fd, b, sizeof b) > 0);
	close(fd);
}
static void *request(void *p) {
	for (;;) {
		slurp("/proc/cpuinfo");
		slurp("/proc/stat");
		slurp("/sys/devices/system/cpu/online");
		slurp("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq");
	}
	return p;
}
int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 2;
	pthread_t t;
	for (int i = 0; i < n && i < 16; i++) pthread_create(&t, NULL, request, NULL);
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
