// statefile THREADS: workers save their state by truncating a file of 64 KiB and writing it anew. The file system starts to write it at
// close(2) (ext4: auto_da_alloc, replace via truncate), and the next truncation waits for that. 20 files each, 5 MiB in all.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void *save(void *p) {
	static char b[65536];
	char n[64];
	for (unsigned long i = 0;; i++) {
		snprintf(n, sizeof n, "/data/state-%ld-%lu", (long)p, i % 20);
		int f = open(n, O_WRONLY | O_CREAT | O_TRUNC, 0600);
		if (f < 0) { perror(n); exit(1); }
		if (write(f, b, sizeof b) < 0) perror("write");
		close(f);
	}
	return p;
}
int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 4;
	for (long i = 0; i < n; i++) { pthread_t t; pthread_create(&t, NULL, save, (void *)i); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
