// set12-oltp: a healthy database under load: 120 MiB of buffers, 8 sessions that look up rows and commit together, about 30
// commits a second, and a checkpoint of 8 MiB every 5 s.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define SIZE (120ul << 20)
static char *pool;
static void *session(void *p) {
	unsigned seed = (unsigned)(long)p;
	for (long sum = 0;; usleep(10000)) for (int i = 0; i < 5000; i++) sum += pool[((unsigned long)rand_r(&seed) << 6) % SIZE];
	return NULL;
}
int main(void) {
	int wal = open("/data/wal", O_RDWR | O_CREAT, 0600), heap = open("/data/heap", O_RDWR | O_CREAT, 0600);
	pool = malloc(SIZE);
	if (wal < 0 || heap < 0 || !pool) return 1;
	memset(pool, 1, SIZE);
	for (long i = 1; i <= 8; i++) { pthread_t t; pthread_create(&t, NULL, session, (void *)i); }
	printf("ready\n");
	fflush(stdout);
	for (unsigned long n = 0;; n++) {
		if (pwrite(wal, pool, 8192, 8192 * (n % 2048)) < 0) return 1;
		fdatasync(wal);
		if (n % 150 == 149) { if (pwrite(heap, pool, 8 << 20, 0) < 0) return 1; fdatasync(heap); }
		usleep(30000);
	}
}
