// ngxreload: an ingress controller writes a new configuration every 5 s or so. The master parses it, forks new workers, and
// each of them builds its tables anew; the old workers drain for 8 s.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SERVERS = 60000, WORKERS = 6 };
static char *conf[SERVERS];
static double cpu(void) { struct timespec t; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void parse(int generation) {
	for (int i = 0; i < SERVERS; i++) {
		char b[256];
		free(conf[i]);
		snprintf(b, sizeof b, "server { server_name host-%d-%d.example; location /api/%d { proxy_pass http://10.0.%d.%d:8080; } }", generation, i, i * 7919 % SERVERS, i % 250, i % 199);
		conf[i] = strdup(b);
	}
}
static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
static void worker(void) {
	prctl(PR_SET_NAME, "nginx-worker");
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	// the tables of names, locations and certificates are built in each worker
	for (double end = 0.4; cpu() < end;) {
		for (int i = SERVERS - 1; i > 0; i--) { int j = rand() % (i + 1); char *t = conf[i]; conf[i] = conf[j]; conf[j] = t; }
		qsort(conf, SERVERS, sizeof *conf, by_name);
	}
	sleep(8);
	_exit(0);
}
int main(void) {
	prctl(PR_SET_NAME, "nginx-master");
	signal(SIGCHLD, SIG_IGN);
	printf("ready\n");
	fflush(stdout);
	for (int g = 0;; g++) {
		for (int k = 0; k < 6; k++) parse(g * 10 + k); // included files, each of which is read anew
		for (int i = 0; i < WORKERS; i++) if (fork() == 0) worker();
		sleep(4);
	}
}
