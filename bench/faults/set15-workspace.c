// workspace ANON_MB FILE_MB THREADS: programs that need ANON_MB of memory for themselves and read the FILE_MB of
// their code and data all the time. With too small a limit the files are read from the disk again and again.
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static long anon, size;
static volatile char *map; static char *mem;
static void *reads(void *p) {
	unsigned x = 7 + (unsigned)(long)p; long sum = 0;
	for (;;) {
		x = x * 1103515245 + 12345;
		size_t at = ((size_t)(x >> 4) << 12) % ((size_t)size << 20);
		for (int i = 0; i < 32; i++) sum += map[(at + i * 4096UL) % ((size_t)size << 20)];
		usleep(50);
	}
	return (void *)sum;
}
int main(int argc, char **argv) {
	if (argc < 4) return 2;
	anon = atol(argv[1]); size = atol(argv[2]);
	int fd = open("/data/code", O_RDWR | O_CREAT, 0600);
	if (fd < 0) { perror("open"); return 1; }
	char *b = malloc(1 << 20);
	for (long i = 0; i < size; i++) { memset(b, i + 1, 1 << 20); if (write(fd, b, 1 << 20) < 0) { perror("write"); return 1; } if (i % 32 == 31) fdatasync(fd); }
	fdatasync(fd);
	map = mmap(NULL, (size_t)size << 20, PROT_READ, MAP_SHARED, fd, 0);
	mem = malloc((size_t)anon << 20);
	if (map == MAP_FAILED || !mem) return 1;
	memset(mem, 1, (size_t)anon << 20);
	for (long i = 0; i < atol(argv[3]); i++) { pthread_t t; pthread_create(&t, NULL, reads, (void *)i); }
	sleep(1);
	printf("ready\n"); fflush(stdout);
	for (;; usleep(200000)) for (size_t i = 0; i < (size_t)anon << 20; i += 4096) mem[i]++;
}
