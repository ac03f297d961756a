// mallocarenas LIMIT_MIB: each of 32 threads has an arena of malloc(3) of its own. A request allocates many objects and keeps
// every second one for a while; the holes are too small for the next request, so that no arena ever shrinks, mallopt(3).
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { THREADS = 32, OBJECTS = 200 };
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static long limit;
static long rss(void) {
	long a = 0, b = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	if (f) { if (fscanf(f, "%ld %ld", &a, &b) != 2) b = 0; fclose(f); }
	return b / 256;
}
static void *serve(void *p) {
	size_t size = 400;
	void *o[OBJECTS];
	for (;;) {
		pthread_mutex_lock(&turn);
		long m = rss();
		pthread_mutex_unlock(&turn);
		if (m < limit) {
			for (int i = 0; i < OBJECTS; i++) { o[i] = malloc(size); if (o[i]) memset(o[i], 1, size); }
			for (int i = 0; i < OBJECTS; i += 2) free(o[i]); // the others stay in a cache
			size += 16;
			if (size > 4000) size = 400;
		}
		usleep(1000000);
	}
	return p;
}
int main(int argc, char **argv) {
	limit = argc > 1 ? atol(argv[1]) : 220;
	prctl(PR_SET_NAME, "puma");
	for (int i = 0; i < THREADS; i++) { pthread_t t; pthread_create(&t, NULL, serve, NULL); usleep(5000); }
	printf("ready\n");
	fflush(stdout);
	pause();
	return 0;
}
