// indexer LINES_PER_S: each document fails and writes its stack trace to the standard output, LINES_PER_S lines in all.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv) {
	long rate = argc > 1 ? atol(argv[1]) : 1000, n = 0;
	printf("ready\n"); fflush(stdout);
	struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
	double start = t.tv_sec + t.tv_nsec / 1e9;
	for (;; usleep(10000)) {
		clock_gettime(CLOCK_MONOTONIC, &t);
		long until = (t.tv_sec + t.tv_nsec / 1e9 - start) * rate;
		if (until - n > rate) n = until - rate;
		for (; n < until; n++)
			if (n % 10 == 0) printf("ERROR document %ld: cannot parse field 'date': java.lang.IllegalArgumentException: Invalid format\n", n / 10);
			else printf("\tat org.example.index.DocumentMapper.parse%ld(DocumentMapper.java:%ld) ~[index-8.1.jar:8.1]\n", n % 10, 100 + n % 10 * 17);
		fflush(stdout);
	}
}
