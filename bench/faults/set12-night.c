// set12-night KIND: one of the jobs that all start at midnight. etl (sorts in two threads for each CPU), vacuum (reads its tables
// past the page cache in eight threads).
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define SIZE (256ul << 20)
static int less(const void *a, const void *b) { return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b); }
static void *etl(void *p) {
	int n = 1 << 20, *rows = malloc(n * sizeof *rows);
	unsigned seed = (unsigned)(long)p;
	while (rows) { for (int i = 0; i < n; i++) rows[i] = rand_r(&seed); qsort(rows, n, sizeof *rows, less); }
	return NULL;
}
static void *vacuum(void *p) {
	int fd = open("/data/table", O_RDONLY | O_DIRECT);
	void *b;
	unsigned seed = (unsigned)(long)p;
	if (fd < 0 || posix_memalign(&b, 4096, 1 << 18)) { perror("table"); exit(1); }
	for (;;) if (pread(fd, b, 1 << 18, (off_t)(rand_r(&seed) % (SIZE >> 18)) << 18) < 0) exit(1);
	return NULL;
}
int main(int argc, char **argv) {
	int v = argc > 1 && !strcmp(argv[1], "vacuum");
	long n = v ? 8 : 2 * sysconf(_SC_NPROCESSORS_ONLN);
	if (v) {
		static char buf[1 << 20];
		int fd = open("/data/table", O_WRONLY | O_CREAT, 0600);
		memset(buf, 1, sizeof buf);
		for (unsigned long i = 0; i < SIZE; i += sizeof buf) if (pwrite(fd, buf, sizeof buf, i) < 0) return 1;
		fdatasync(fd);
	}
	for (long i = 0; i < n; i++) { pthread_t t; pthread_create(&t, NULL, v ? vacuum : etl, (void *)(i + 1)); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
