// thread-per-url NOW MAX: a crawler with a thread for each address whose server never answers: it has NOW threads, and one
// more each 5 s until MAX, all asleep. The limit of processes of its container is near.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *fetch(void *x) { for (;;) pause(); return x; }
int main(int argc, char **argv) {
	pthread_attr_t a;
	pthread_t t;
	if (argc < 3) return 2;
	pthread_attr_init(&a);
	pthread_attr_setstacksize(&a, 65536);
	for (int n = 1; n < atoi(argv[2]); n++) {
		if (pthread_create(&t, &a, fetch, NULL)) perror("pthread_create");
		if (n == atoi(argv[1])) { printf("ready\n"); fflush(stdout); }
		if (n >= atoi(argv[1])) sleep(5);
	}
	for (;;) pause();
}
