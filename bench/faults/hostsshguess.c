// hostsshguess: robots try passwords at the SSH server of the host; it forks a process for each connection, which computes a
// key exchange and the hash of a password.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_in at;
static double cpu(void) { struct timespec t; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void work(double s) { for (double end = cpu() + s; cpu() < end;) for (volatile int i = 0; i < 2000; i++); }
static void *robot(void *p) {
	for (;;) {
		char b[64];
		int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (connect(s, (struct sockaddr *)&at, sizeof at) == 0 && send(s, "root:123456\n", 12, MSG_NOSIGNAL) > 0 && recv(s, b, sizeof b, 0) < 0) usleep(1000);
		close(s);
		usleep(20000);
	}
	return p;
}
int main(void) {
	int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t n = sizeof at;
	at.sin_family = AF_INET;
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	signal(SIGCHLD, SIG_IGN);
	if (bind(l, (struct sockaddr *)&at, sizeof at) || listen(l, 128) || getsockname(l, (struct sockaddr *)&at, &n)) { perror("listen"); return 1; }
	if (fork() == 0) { // the robots
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (int i = 0; i < 20; i++) { pthread_t t; pthread_create(&t, NULL, robot, NULL); }
		for (;;) pause();
	}
	prctl(PR_SET_NAME, "sshd");
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		int s = accept(l, NULL, NULL);
		if (s < 0) continue;
		if (fork() == 0) {
			char b[64];
			prctl(PR_SET_NAME, "sshd-session");
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			work(0.012); // the key exchange
			if (recv(s, b, sizeof b, 0) > 0) { work(0.006); send(s, "denied\n", 7, MSG_NOSIGNAL); }
			_exit(0);
		}
		close(s);
	}
}
