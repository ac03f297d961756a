/* A web service with a backlog of 64: a call takes 100 ms, and its clients come 60 times a second. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
static struct sockaddr_in a;
static void clients(void) {
	static int f[240];
	for (int i = 0; i < 240; i++) f[i] = -1;
	for (int n = 0;; n++) {
		int i = n % 240;
		if (f[i] >= 0) close(f[i]);
		f[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		if (f[i] >= 0) connect(f[i], (void *)&a, sizeof a);
		usleep(16000);
	}
}
int main(void) {
	int s = socket(AF_INET, SOCK_STREAM, 0), one = 1, ready = 0;
	char b[256];
	a.sin_family = AF_INET; a.sin_port = htons(8080); a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(s, (void *)&a, sizeof a) || listen(s, 64)) { perror("listen"); return 1; }
	if (fork() == 0) clients();
	for (int n = 0;; n++) {
		int k = accept(s, 0, 0);
		usleep(100000);
		if (k >= 0) {
			if (recv(k, b, sizeof b, MSG_DONTWAIT) > 0) b[0] = 0;
			close(k);
		}
		if (!ready && n == 40) { ready = 1; puts("ready"); fflush(stdout); }
	}
}
