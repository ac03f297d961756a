// set13-net backlog | dns | lossy: services with trouble on the network, all over loopback.
// backlog: accepts five connections a second from a queue of 16, while clients open hundreds. dns: a resolver that answers
// 1000 queries a second and gets several thousands. lossy: a link that loses 6 % of all packets (a socket filter that drops
// at random, socket(7) SO_ATTACH_FILTER), between a service and its clients.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

static void fail(const char *what) { perror(what); exit(1); }
static void ready(void) { printf("ready\n"); fflush(stdout); }
static struct sockaddr_in to;
static int server(int type, int backlog) {
	socklen_t n = sizeof to;
	int s = socket(AF_INET, type, 0), mss = 1400;
	to.sin_family = AF_INET;
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (s < 0 || bind(s, (struct sockaddr *)&to, sizeof to) || getsockname(s, (struct sockaddr *)&to, &n)) fail("bind");
	if (type == SOCK_STREAM) { setsockopt(s, IPPROTO_TCP, TCP_MAXSEG, &mss, sizeof mss); if (listen(s, backlog)) fail("listen"); }
	return s;
}
static void *clients(void *p) {
	int fds[200];
	memset(fds, -1, sizeof fds);
	for (int i = 0;; i = (i + 1) % 200) { // each waits for four seconds, then gives up
		if (fds[i] >= 0) close(fds[i]);
		fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		if (fds[i] >= 0) connect(fds[i], (struct sockaddr *)&to, sizeof to);
		usleep(20000);
	}
	return p;
}
static void backlog(void) {
	int s = server(SOCK_STREAM, 16);
	pthread_t t;
	pthread_create(&t, NULL, clients, NULL);
	sleep(1);
	ready();
	for (;;) { int c = accept(s, NULL, NULL); usleep(200000); if (c >= 0) close(c); }
}
static void *queries(void *p) {
	char q[60] = {0};
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	for (;;) { for (int i = 0; i < 20; i++) sendto(s, q, sizeof q, 0, (struct sockaddr *)&to, sizeof to); usleep(5000); }
	return p;
}
static void dns(void) {
	int s = server(SOCK_DGRAM, 0), size = 64 << 10;
	char q[512];
	setsockopt(s, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
	for (int i = 0; i < 2; i++) { pthread_t t; pthread_create(&t, NULL, queries, NULL); }
	ready();
	for (;;) { if (recv(s, q, sizeof q, 0) > 0) usleep(900); }
}
#define SIZE (64 << 10)
static void lose(int s) {
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)(SKF_AD_OFF + SKF_AD_RANDOM)),
		BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0xffffffffu / 100 * 6, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, 0),
		BPF_STMT(BPF_RET | BPF_K, 0xffffffffu)};
	struct sock_fprog f = {sizeof code / sizeof *code, code};
	if (setsockopt(s, SOL_SOCKET, SO_ATTACH_FILTER, &f, sizeof f)) fail("SO_ATTACH_FILTER");
}
static void *client(void *p) {
	static __thread char b[SIZE];
	int s = socket(AF_INET, SOCK_STREAM, 0), mss = 1400;
	setsockopt(s, IPPROTO_TCP, TCP_MAXSEG, &mss, sizeof mss);
	if (connect(s, (struct sockaddr *)&to, sizeof to)) fail("connect");
	for (;;) { if (write(s, b, SIZE) < 0 || recv(s, b, 1, MSG_WAITALL) < 1) fail("client"); usleep(2000); }
	return p;
}
static void *serve(void *p) {
	static __thread char b[SIZE];
	int s = (int)(long)p;
	lose(s);
	for (;;) if (recv(s, b, SIZE, MSG_WAITALL) < 1 || write(s, b, 1) < 0) fail("server");
	return p;
}
static void lossy(void) {
	int s = server(SOCK_STREAM, 64);
	for (int i = 0; i < 12; i++) {
		pthread_t t, u;
		pthread_create(&t, NULL, client, NULL);
		int c = accept(s, NULL, NULL);
		if (c < 0) fail("accept");
		pthread_create(&u, NULL, serve, (void *)(long)c);
	}
	ready();
	pause();
}
int main(int argc, char **argv) {
	const char *k = argc > 1 ? argv[1] : "";
	prctl(PR_SET_NAME, !strcmp(k, "dns") ? "coredns" : "rpcserver");
	if (!strcmp(k, "backlog")) backlog();
	else if (!strcmp(k, "dns")) dns();
	else if (!strcmp(k, "lossy")) lossy();
	fprintf(stderr, "usage: set13-net backlog | dns | lossy\n");
	return 2;
}
