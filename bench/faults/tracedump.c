// tracedump MIB EVERY_S: an error handler logs a stack trace for each of thousands of failed items, in bursts of
// MIB MiB on its standard output. At most 400 MiB in all.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv) {
	if (argc < 3) return 2;
	long burst = atol(argv[1]) << 20, every = atol(argv[2]), total = 0, item = 0;
	static char out[65536];
	setvbuf(stdout, out, _IOFBF, sizeof out);
	printf("ready\n");
	fflush(stdout);
	while (total < 400L << 20) {
		for (long n = 0; n < burst;) {
			n += printf("ERROR item %ld rejected: java.lang.IllegalStateException: connection pool is closed\n", item++);
			for (int d = 0; d < 24; d++) n += printf("\tat com.example.pipeline.stage%d.Handler.process(Handler.java:%d) ~[app.jar:4.2.1]\n", d, 100 + d * 7);
		}
		fflush(stdout);
		total += burst;
		sleep(every);
	}
	for (;;) pause();
}
