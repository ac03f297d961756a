/* Writes LINES a second to stdout, each with its own write as most loggers do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
int main(int c, char **v) {
	double rate = c > 1 ? atof(v[1]) : 100, t; long n = 0; char b[400];
	puts("ready"); fflush(stdout);
	for (t = now();;) {
		double due = (now() - t) * rate;
		if (due - n > rate) { t = now(); n = 0; due = 0; } /* the engine was slower: no backlog */
		while (n < due) {
			int k = snprintf(b, sizeof b, "2026-01-01T00:00:00Z DEBUG [http-nio-8080-exec-%ld] com.example.orders.Mapper: mapped field %ld of the request with headers accept=*/* agent=probe trace=%016lx\n", n % 20, n, n * 2654435761ul);
			if (write(1, b, k) < 0) return 1;
			n++;
		}
		usleep(rate > 1000 ? 2000 : 10000);
	}
}
