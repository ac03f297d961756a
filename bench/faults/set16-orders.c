/* An order service: a thread for every request, which waits for an answer that never comes. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *waiting(void *a) { for (;;) pause(); return a; }

int main(int argc, char **argv) {
	int start = argc > 1 ? atoi(argv[1]) : 475, max = argc > 2 ? atoi(argv[2]) : 600;
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 65536);
	for (int n = 0;;) {
		pthread_t t;
		int e = n < max ? pthread_create(&t, &attr, waiting, 0) : 0;
		if (e) { printf("unable to create new native thread: %s\n", strerror(e)); fflush(stdout); sleep(2); }
		else n++;
		if (n == start) { puts("ready"); fflush(stdout); }
		if (n >= start) sleep(2);
	}
}
