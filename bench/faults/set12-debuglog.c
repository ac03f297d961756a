// set12-debuglog LINES: a service with its log level at DEBUG writes LINES lines of 250 bytes a second to its standard output.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv) {
	int lines = argc > 1 ? atoi(argv[1]) : 1000;
	printf("ready\n");
	fflush(stdout);
	for (unsigned long n = 0;;) {
		for (int i = 0; i < lines / 50; i++, n++)
			printf("2024-05-12T10:11:12.000Z DEBUG org.example.http.wire [nio-exec-%lu] >> \"POST /api/v1/orders/%lu HTTP/1.1[\\r][\\n]\" headers={host=orders.internal, accept=application/json, traceparent=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01} body=%080lu\n", n % 16, n, n);
		fflush(stdout);
		usleep(20000);
	}
}
