// A crawler resolves names against a hosts file of 40,000 lines, which the resolver reads from start to end for each name.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static void fail(const char *what) { perror(what); exit(1); }
static void ready(void) { printf("ready\n"); fflush(stdout); }
static void *lookup(void *p) {
	char line[256], name[64], *save;
	for (unsigned long n = 0;; n++) {
		snprintf(name, sizeof name, "missing-%lu.example", n);
		FILE *f = fopen("/tmp/hosts", "re");
		if (!f) fail("hosts");
		while (fgets(line, sizeof line, f)) for (char *w = strtok_r(line, " \t\n", &save); w; w = strtok_r(NULL, " \t\n", &save)) if (!strcasecmp(w, name)) break;
		fclose(f);
	}
	return p;
}
int main(void) {
	FILE *f = fopen("/tmp/hosts", "w");
	if (!f) fail("hosts");
	for (int i = 0; i < 40000; i++) fprintf(f, "0.0.0.0 ads%d.tracker%d.example.com www.ads%d.example.com\n", i, i % 97, i);
	fclose(f);
	for (int i = 0; i < 4; i++) { pthread_t t; pthread_create(&t, NULL, lookup, NULL); }
	ready();
	pause();
	return 0;
}
