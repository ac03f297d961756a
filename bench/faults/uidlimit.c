// uidlimit LIMIT THREADS: a service runs as user 1000 under "ulimit -u LIMIT" and has THREADS threads: nproc counts the
// processes of a user in all containers of the host.
#define _GNU_SOURCE
#include <grp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

static void *idle(void *p) { for (;;) sleep(5); return p; }
int main(int argc, char **argv) {
	if (argc < 3) return 2;
	struct rlimit r = {atoi(argv[1]), atoi(argv[1])};
	pthread_attr_t a;
	if (setrlimit(RLIMIT_NPROC, &r)) { perror("setrlimit"); return 1; }
	if (setgroups(0, NULL) || setgid(1000) || setuid(1000)) { perror("setuid"); return 1; }
	pthread_attr_init(&a);
	pthread_attr_setstacksize(&a, 65536);
	for (int i = 1; i < atoi(argv[2]); i++) { pthread_t t; if (pthread_create(&t, &a, idle, NULL)) break; }
	printf("ready\n");
	fflush(stdout);
	for (;;) sleep(5);
}
