// scheduler START MAX: starts a thread for each job, and the threads wait for ever: START at first, one more every 2 s, MAX at most.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void *job(void *p) { pause(); return p; }
int main(int argc, char **argv) {
	pthread_attr_t at; pthread_t t;
	if (argc < 3) return 2;
	pthread_attr_init(&at);
	pthread_attr_setstacksize(&at, 65536);
	for (int n = 0;; n++) {
		if (n < atoi(argv[2]) && pthread_create(&t, &at, job, NULL)) perror("thread");
		if (n == atoi(argv[1])) { printf("ready\n"); fflush(stdout); }
		if (n >= atoi(argv[1])) sleep(2);
	}
}
