// msync THREADS MIB: an embedded database in a mapped file of MIB mebibytes. Each transaction
// changes two pages and writes them to the disk, msync(2): MS_SYNC.
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static char *table;
static size_t pages;

static void *work(void *p) {
	unsigned seed = (unsigned)(size_t)p;
	for (unsigned n = 0;; n++) {
		for (int i = 0; i < 2; i++) {
			char *at = table + 4096 * ((size_t)rand_r(&seed) % pages);
			*(volatile unsigned *)at = n;
			msync(at, 4096, MS_SYNC);
		}
	}
	return NULL;
}

int main(int argc, char **argv) {
	int threads = argc > 1 ? atoi(argv[1]) : 0, mib = argc > 2 ? atoi(argv[2]) : 0;
	if (threads < 1 || threads > 32 || mib < 1 || mib > 512) { fprintf(stderr, "usage: msync THREADS MIB\n"); return 2; }
	int fd = open("/data/table", O_RDWR | O_CREAT, 0600);
	size_t size = (size_t)mib << 20;
	pages = size / 4096;
	if (fd < 0 || posix_fallocate(fd, 0, size)) { perror("/data/table"); return 1; }
	table = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (table == MAP_FAILED) { perror("mmap"); return 1; }
	for (int i = 0; i < threads; i++) { pthread_t t; if (pthread_create(&t, NULL, work, (void *)(size_t)(i + 1))) { perror("pthread_create"); return 1; } }
	printf("ready\n");
	fflush(stdout);
	pause();
	return 0;
}
