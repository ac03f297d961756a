// Healthy: an application server has 300 threads that wait, 4000 mappings and a sparse file of 200 GiB, and answers one
// request every 20 ms.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static void *wait_for_work(void *none) {
	pthread_mutex_lock(&m);
	for (;;) pthread_cond_wait(&c, &m);
	return none;
}
int main(void) {
	pthread_attr_t a;
	pthread_t t;
	pthread_attr_init(&a);
	pthread_attr_setstacksize(&a, 65536);
	for (int i = 0; i < 300; i++) if (pthread_create(&t, &a, wait_for_work, NULL)) { perror("thread"); return 1; }
	for (int i = 0; i < 4000; i++) if (mmap(NULL, 8192, i % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) return 1;
	int fd = open("/data/volume", O_RDWR | O_CREAT, 0600);
	if (fd < 0 || ftruncate(fd, 200L << 30)) { perror("volume"); return 1; }
	if (write(1, "ready\n", 6) < 0) return 1;
	for (unsigned n = 0;; n++) { if (pwrite(fd, "answer", 6, (long)(n % 1000) << 27) < 0) return 1; usleep(20000); }
}
