/* A healthy application with a large pool: 250 threads that wait, 300 descriptors, some requests a second. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static void *wait_(void *a) { (void)a; for (;;) sleep(5); return 0; }
int main(void) {
	pthread_attr_t at;
	pthread_t t;
	volatile double x = 1;
	pthread_attr_init(&at);
	pthread_attr_setstacksize(&at, 65536);
	for (int i = 0; i < 250; i++) pthread_create(&t, &at, wait_, 0);
	for (int i = 0; i < 300; i++) if (open("/dev/null", O_RDWR) < 0) break;
	puts("ready"); fflush(stdout);
	for (;;) {
		for (int i = 0; i < 1000000; i++) x = x * 1.0000001 + 0.5;
		usleep(50000);
	}
}
