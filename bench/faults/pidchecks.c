// pidchecks: a signing service whose library asks getpid(2) before each few random bytes, to notice a fork.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *sign(void *p) {
	volatile unsigned x = 1;
	for (;;) { if (syscall(SYS_getpid) < 0) break; for (int i = 0; i < 8; i++) x = x * 1664525 + 1013904223; }
	return p;
}
int main(void) {
	for (int i = 0; i < 4; i++) { pthread_t t; pthread_create(&t, NULL, sign, NULL); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
