// erlprobe: a broker whose liveness and readiness probes start four Erlang VMs every four seconds; each VM loads its
// code and calculates with six scheduler threads for 1.3 s.
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void *schedule(void *p) { for (double end = now() + 1.3; now() < end;) for (volatile int i = 0; i < 5000; i++); return p; }

int main(int argc, char **argv) {
	if (argc > 1 && !strcmp(argv[1], "vm")) {
		pthread_t t[6];
		size_t n = 16 << 20;
		char *m = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (m != MAP_FAILED) memset(m, 1, n);
		for (int i = 0; i < 6; i++) pthread_create(&t[i], NULL, schedule, NULL);
		for (int i = 0; i < 6; i++) pthread_join(t[i], NULL);
		return 0;
	}
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		for (int i = 0; i < 4; i++) if (fork() == 0) { execl("/proc/self/exe", "beam.smp", "vm", NULL); _exit(1); }
		while (wait(NULL) > 0);
		sleep(3);
	}
}
