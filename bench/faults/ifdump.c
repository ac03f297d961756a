// ifdump THREADS: a client library looks up its own addresses for each message: getifaddrs(3), a socket and two
// dumps of rtnetlink(7) each time.
#include <ifaddrs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *send_one(void *p) {
	for (;;) { struct ifaddrs *a; if (getifaddrs(&a) == 0) freeifaddrs(a); else usleep(1000); }
	return p;
}
int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 2;
	pthread_t t;
	for (int i = 0; i < n && i < 16; i++) pthread_create(&t, NULL, send_one, NULL);
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
