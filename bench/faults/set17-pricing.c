/* Calculates prices with ARG threads, without a pause. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void *run(void *a) {
	volatile double s = 1;
	(void)a;
	for (;;) for (int i = 1; i < 1000000; i++) s = s + 1.0 / ((double)i * i + s);
	return 0;
}
int main(int c, char **v) {
	int n = c > 1 ? atoi(v[1]) : 4;
	pthread_t t;
	for (int i = 0; i < n; i++) pthread_create(&t, 0, run, 0);
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
