// accesslog PER_S: a web server writes one line a request on its standard output.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
	int rate = argc > 1 ? atoi(argv[1]) : 100;
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("ready\n");
	for (long n = 0;; n++) {
		printf("10.1.%ld.%ld - - \"GET /product/%ld HTTP/1.1\" 200 %ld \"-\" \"Mozilla/5.0\" 0.00%ld\n", n % 7, n % 200, n % 9999, 900 + n % 5000, n % 10);
		for (volatile int k = 0; k < 100000; k++);
		usleep(1000000 / rate);
	}
}
