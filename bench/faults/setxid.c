// setxid: a file server takes the user of each request with seteuid(2). glibc signals all threads of the process each time
// so that they do the same, nptl(7); two processes have 150 threads each.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

static int never[2];
static void *idle(void *p) { char c; while (read(never[0], &c, 1) != 1); return p; }
static void serve(void) {
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NAME, "fileserver");
	if (pipe(never)) _exit(1);
	pthread_attr_t a;
	pthread_attr_init(&a);
	pthread_attr_setstacksize(&a, 65536);
	for (int i = 0; i < 150; i++) { pthread_t t; if (pthread_create(&t, &a, idle, NULL)) _exit(1); }
	for (;;) {
		if (seteuid(1000)) _exit(1);
		for (volatile int i = 0; i < 2000; i++);
		if (seteuid(0)) _exit(1);
	}
}
int main(void) {
	for (int i = 0; i < 2; i++) if (fork() == 0) serve();
	sleep(1);
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
