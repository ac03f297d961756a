/* An API: six threads serve a request of 6 ms of CPU every 30 ms. */
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
static double cpu(void) {
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}
static void *serve(void *a) {
	volatile double x = 1;
	(void)a;
	for (;;) {
		double s = cpu();
		while (cpu() - s < 6) for (int i = 0; i < 10000; i++) x = x * 1.0000001 + 0.5;
		usleep(30000);
	}
	return 0;
}
int main(void) {
	pthread_t t;
	for (int i = 0; i < 6; i++) pthread_create(&t, 0, serve, 0);
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
