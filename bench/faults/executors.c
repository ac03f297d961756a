// executors FIRST RATE: a service makes a pool of threads for each request and never shuts it down: FIRST threads wait at the
// start, RATE more each second, until pthread_create(3) fails at the limit of the container (at most 2,000).
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>
static void *idle(void *p) { char n[16]; snprintf(n, sizeof n, "pool-%ld-thr-1", (long)p); prctl(PR_SET_NAME, n); for (;;) pause(); return p; }
int main(int argc, char **argv) {
	long first = argc > 1 ? atol(argv[1]) : 250, rate = argc > 2 ? atol(argv[2]) : 4;
	pthread_attr_t at;
	pthread_t t;
	pthread_attr_init(&at);
	pthread_attr_setstacksize(&at, 65536);
	for (long n = 0;; n++) {
		if (n == first) { printf("ready\n"); fflush(stdout); }
		if (n >= first) usleep(1000000 / rate);
		if (n > 2000 || pthread_create(&t, &at, idle, (void *)n)) { n--; fprintf(stderr, "unable to create native thread\n"); usleep(500000); }
	}
}
