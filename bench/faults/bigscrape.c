// bigscrape: an exporter formats 1,200,000 series anew for each of six scrapers, all of which come every 5 s at the same
// time over loopback and parse each line.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SERIES = 1200000, SCRAPERS = 6 };
static struct sockaddr_in at;
static void *answer(void *p) {
	int s = (int)(long)p, n = 0;
	char b[65536];
	for (int i = 0; i < SERIES; i++) {
		n += snprintf(b + n, sizeof b - n, "http_requests_total{namespace=\"team-%d\",pod=\"api-%d\",code=\"%d\"} %.3f\n", i % 300, i, 200 + i % 5, i * 1.5);
		if (n > 65000) { if (send(s, b, n, MSG_NOSIGNAL) < 0) break; n = 0; }
	}
	if (n) send(s, b, n, MSG_NOSIGNAL);
	close(s);
	return NULL;
}
static void *exporter(void *p) {
	int l = (int)(long)p;
	for (;;) {
		int s = accept(l, NULL, NULL);
		pthread_t t;
		if (s >= 0 && pthread_create(&t, NULL, answer, (void *)(long)s) == 0) pthread_detach(t);
	}
	return NULL;
}
static void *scrape(void *p) {
	double sum = 0;
	unsigned hash = 0; // of the labels
	(void)p;
	for (;;) {
		struct timespec t;
		clock_gettime(CLOCK_MONOTONIC, &t);
		usleep((5 - t.tv_sec % 5) * 1000000 - t.tv_nsec / 1000); // all at the same time
		int s = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(s, (struct sockaddr *)&at, sizeof at)) { close(s); continue; }
		FILE *f = fdopen(s, "r");
		char line[512];
		while (fgets(line, sizeof line, f)) { char *v = strrchr(line, ' '); if (v) sum += atof(v); for (char *c = line; *c; c++) hash = (hash ^ *c) * 16777619; }
		fclose(f);
	}
	return p + (sum < 0) + (hash == 1);
}
int main(void) {
	socklen_t n = sizeof at;
	int l = socket(AF_INET, SOCK_STREAM, 0);
	prctl(PR_SET_NAME, "state-metrics");
	at.sin_family = AF_INET;
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(l, (struct sockaddr *)&at, sizeof at) || listen(l, 64) || getsockname(l, (struct sockaddr *)&at, &n)) { perror("listen"); return 1; }
	pthread_t t;
	pthread_create(&t, NULL, exporter, (void *)(long)l);
	for (int i = 0; i < SCRAPERS; i++) pthread_create(&t, NULL, scrape, NULL);
	printf("ready\n");
	fflush(stdout);
	pause();
	return 0;
}
