// envexec: the hooks of a pod in a namespace of thousands of services: each of its short commands gets 9,000 variables,
// 1.2 MiB, and execve(2) copies all of them twice.
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char *env[9001];
static void *hook(void *p) {
	char *av[] = {"hook", "true", NULL};
	for (;;) {
		pid_t c;
		if (posix_spawn(&c, "/proc/self/exe", NULL, NULL, av, env) == 0) waitpid(c, NULL, 0); else usleep(10000);
	}
	return p;
}
int main(int argc, char **argv) {
	if (argc > 1 && !strcmp(argv[1], "true")) _exit(0);
	for (int i = 0; i < 9000; i++) {
		env[i] = malloc(160);
		snprintf(env[i], 160, "TENANT_%05d_REVIEW_DEPLOYMENT_BACKEND_PORT_8080_TCP_ADDRESS_OF_THE_SERVICE=tcp://10.96.%d.%d:8080/%040d", i, i / 250, i % 250, i);
	}
	for (int i = 0; i < 4; i++) { pthread_t t; pthread_create(&t, NULL, hook, NULL); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
