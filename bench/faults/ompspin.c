// ompspin THREADS: numeric code with one thread for each CPU of the machine that it was built on; threads wait for
// each other actively at the end of each parallel region (OMP_WAIT_POLICY=active).
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int n;
static atomic_int arrived, region;
static void *team(void *p) {
	volatile double x = 1;
	for (int mine = 0;; mine++) {
		for (int i = 0; i < 50000; i++) x = x * 1.000001 + 0.1;
		if (atomic_fetch_add(&arrived, 1) == n - 1) { atomic_store(&arrived, 0); atomic_store(&region, mine + 1); }
		else while (atomic_load(&region) <= mine) __builtin_ia32_pause();
	}
	return p;
}
int main(int argc, char **argv) {
	pthread_t t;
	n = argc > 1 ? atoi(argv[1]) : 16;
	if (n > 128) n = 128;
	for (int i = 0; i < n; i++) if (pthread_create(&t, NULL, team, NULL)) return 1;
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
