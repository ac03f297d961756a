// set12-statsd: a metrics collector that parses slower than its clients send: 12000 datagrams a second arrive, it handles at
// most about 2000, the rest is dropped at its socket.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
int main(void) {
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(8125), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	char b[512];
	if (bind(s, (void *)&a, sizeof a)) { perror("bind"); return 1; }
	if (fork() == 0) {
		int c = socket(AF_INET, SOCK_DGRAM, 0);
		const char *m = "orders.checkout.latency:12|ms|@0.1|#env:prod,region:eu,service:checkout";
		for (;;) { for (int i = 0; i < 120; i++) sendto(c, m, strlen(m), 0, (void *)&a, sizeof a); usleep(10000); }
	}
	usleep(500000);
	printf("ready\n");
	fflush(stdout);
	for (unsigned long n = 0;; n++) if (recv(s, b, sizeof b, 0) > 0 && n % 20 == 0) usleep(10000); // writes a batch to its store
}
