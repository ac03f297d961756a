// idle-policy THREADS: an encoder "in the background": its threads calculate with SCHED_IDLE, sched(7). The policy counts only
// within the control group of its container; against other containers it has the full weight.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *encode(void *x) { for (volatile unsigned long i = 0;; i++); return x; }
int main(int argc, char **argv) {
	struct sched_param p = {0};
	if (sched_setscheduler(0, SCHED_IDLE, &p)) { perror("sched_setscheduler"); return 1; }
	for (int i = 0; i < (argc > 1 ? atoi(argv[1]) : 6); i++) { pthread_t t; pthread_create(&t, NULL, encode, NULL); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
