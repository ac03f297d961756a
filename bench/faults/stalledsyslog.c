// stalledsyslog: a syslog daemon waits for a dead remote server and takes two messages a second. The queue of its datagram
// socket holds net.unix.max_dgram_qlen messages, so that syslog(3) blocks all of the 30 workers.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main(void) {
	struct sockaddr_un a = {.sun_family = AF_UNIX, .sun_path = "/tmp/devlog"};
	char b[512];
	int s = socket(AF_UNIX, SOCK_DGRAM, 0);
	unlink(a.sun_path);
	if (s < 0 || bind(s, (struct sockaddr *)&a, sizeof a)) { perror("bind"); return 1; }
	for (int i = 0; i < 30; i++) if (fork() == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		prctl(PR_SET_NAME, "mail-worker");
		close(s);
		int l = socket(AF_UNIX, SOCK_DGRAM, 0);
		if (connect(l, (struct sockaddr *)&a, sizeof a)) _exit(1);
		for (int n = 0;; n++) {
			for (volatile int k = 0; k < 50000; k++);
			int m = snprintf(b, sizeof b, "<22>mail-worker[%d]: delivered message %d to mailbox", i, n);
			if (send(l, b, m, 0) < 0) _exit(1);
			usleep(20000);
		}
	}
	prctl(PR_SET_NAME, "syslogd");
	sleep(2);
	printf("ready\n");
	fflush(stdout);
	for (;;) { if (recv(s, b, sizeof b, 0) < 0) return 1; usleep(500000); }
}
