// 24 workers poll an empty queue and usleep(1) between two looks.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static void ready(void) { printf("ready\n"); fflush(stdout); }
static volatile int queue;
static void *poller(void *p) { while (!queue) usleep(1); return p; }
int main(void) {
	for (int i = 0; i < 24; i++) { pthread_t t; pthread_create(&t, NULL, poller, NULL); }
	ready();
	pause();
	return 0;
}
