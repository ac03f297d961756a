// mqttlog WRITERS: a message broker makes each message durable by itself: WRITERS append 300 bytes to a log each and call fdatasync(2). A log
// begins again at 8 MiB.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void *session(void *p) {
	char n[64], b[300] = {'q'};
	snprintf(n, sizeof n, "/data/retained-%ld.log", (long)p);
	int f = open(n, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (f < 0) { perror(n); exit(1); }
	for (long at = 0;; at += sizeof b) {
		if (at > 8 << 20) { at = 0; if (ftruncate(f, 0)) perror("ftruncate"); }
		if (pwrite(f, b, sizeof b, at) < 0) perror("write");
		fdatasync(f);
	}
	return p;
}
int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 6;
	for (long i = 0; i < n; i++) { pthread_t t; pthread_create(&t, NULL, session, (void *)i); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
