/* A metrics collector that reads its UDP socket too slowly, and the senders of the host: RATE datagrams a second. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct sockaddr_in addr;
static long rate = 20000;

static void *sender(void *arg) {
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	static const char m[] = "shop.checkout.latency:120|ms|#region:eu,host:web-3";
	(void)arg;
	for (;;) {
		for (long i = 0; i < rate / 100; i++) sendto(s, m, sizeof m, 0, (void *)&addr, sizeof addr);
		usleep(10000);
	}
	return 0;
}

int main(int argc, char **argv) {
	if (argc > 1) rate = atol(argv[1]);
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	char b[512];
	addr.sin_family = AF_INET; addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	socklen_t len = sizeof addr;
	if (bind(s, (void *)&addr, sizeof addr) || getsockname(s, (void *)&addr, &len)) { perror("bind"); return 1; }
	pthread_t t;
	pthread_create(&t, 0, sender, 0);
	for (long n = 0;; n++) {
		recv(s, b, sizeof b, 0);
		usleep(400); /* writes it to its store */
		if (n == 2000) { puts("ready"); fflush(stdout); }
		if (n % 50000 == 49999) { printf("%ld metrics stored\n", n + 1); fflush(stdout); }
	}
}
