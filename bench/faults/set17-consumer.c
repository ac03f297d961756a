/* Takes messages from a queue with a new thread each; the threads wait for an answer that does not come. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void *wait_(void *a) { (void)a; for (;;) pause(); return 0; }
int main(int c, char **v) {
	int start = c > 1 ? atoi(v[1]) : 740;
	pthread_attr_t at;
	pthread_t t;
	pthread_attr_init(&at);
	pthread_attr_setstacksize(&at, 65536);
	for (int n = 0;; n++) {
		if (pthread_create(&t, &at, wait_, 0)) { fprintf(stderr, "unable to create new native thread\n"); sleep(1); }
		if (n == start) { puts("ready"); fflush(stdout); }
		if (n >= start) usleep(2000000);
	}
}
