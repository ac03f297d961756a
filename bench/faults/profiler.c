// profiler EVENTS HZ: a profiler that an operator forgot samples all CPUs, perf_event_open(2). The
// interrupts take time from the tasks that run, in all containers.
#define _GNU_SOURCE
#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long events = argc > 2 ? atol(argv[1]) : 0, hz = argc > 2 ? atol(argv[2]) : 0, cpus = sysconf(_SC_NPROCESSORS_ONLN);
	struct perf_event_attr a;
	if (events < 1 || events > 4 || hz < 1 || hz > 50000) { fprintf(stderr, "usage: profiler EVENTS HZ\n"); return 2; }
	memset(&a, 0, sizeof a);
	a.size = sizeof a;
	a.type = PERF_TYPE_SOFTWARE;
	a.config = PERF_COUNT_SW_CPU_CLOCK;
	a.sample_period = 1000000000 / hz;
	a.sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_CALLCHAIN;
	for (long cpu = 0; cpu < cpus; cpu++)
		for (long i = 0; i < events; i++)
			if (syscall(SYS_perf_event_open, &a, -1, (int)cpu, -1, 0) < 0) { perror("perf_event_open"); return 1; }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
