// mtuhole: the path to the clients of a gateway drops packets of more than 1400 bytes without a word. Handshakes and small
// requests pass; the answers of 12 KiB are retransmitted until the client gives up after 2.5 s. The drop is a
// filter, socket(7) SO_ATTACH_FILTER, at the socket of each client.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/filter.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static struct sockaddr_in to = {.sin_family = AF_INET};
static void *answer(void *p) {
	int c = (int)(long)p;
	char b[12288] = {0};
	struct timeval t = {4, 0};
	setsockopt(c, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
	if (read(c, b, 64) > 0 && write(c, b, sizeof b) > 0) while (read(c, b, 64) > 0);
	close(c);
	return NULL;
}
static void *serve(void *p) {
	int l = (int)(long)p;
	pthread_attr_t a;
	pthread_attr_init(&a);
	pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&a, 65536);
	for (;;) {
		int c = accept(l, NULL, NULL);
		pthread_t t;
		if (c >= 0 && pthread_create(&t, &a, answer, (void *)(long)c)) close(c);
	}
	return NULL;
}
static void *ask(void *p) {
	struct sock_filter f[] = {{BPF_LD | BPF_W | BPF_LEN, 0, 0, 0}, {BPF_JMP | BPF_JGT | BPF_K, 0, 1, 1400}, {BPF_RET | BPF_K, 0, 0, 0}, {BPF_RET | BPF_K, 0, 0, 0x40000}};
	struct sock_fprog fp = {4, f};
	struct timeval t = {2, 500000};
	char b[4096] = {0};
	usleep((int)(long)p * 12000);
	for (;; usleep(20000)) {
		int s = socket(AF_INET, SOCK_STREAM, 0);
		if (s < 0) continue;
		if (setsockopt(s, SOL_SOCKET, SO_ATTACH_FILTER, &fp, sizeof fp)) perror("filter");
		setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
		if (connect(s, (struct sockaddr *)&to, sizeof to) == 0 && write(s, b, 64) > 0 && read(s, b, sizeof b) > 0) fprintf(stderr, "got through\n");
		close(s);
	}
	return NULL;
}
int main(void) {
	socklen_t n = sizeof to;
	pthread_t t;
	int l = socket(AF_INET, SOCK_STREAM, 0);
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(l, (struct sockaddr *)&to, sizeof to) || listen(l, 1024) || getsockname(l, (struct sockaddr *)&to, &n)) { perror("listen"); return 1; }
	pthread_create(&t, NULL, serve, (void *)(long)l);
	for (long i = 0; i < 200; i++) pthread_create(&t, NULL, ask, (void *)i);
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
