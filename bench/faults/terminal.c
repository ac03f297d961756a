// terminal SESSIONS KIB_PER_SECOND: programs print to the terminals of a browser IDE, pty(7), and its
// server reads them. With 0 KiB a second the programs print without a pause, as yes(1) does.
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void print(const char *terminal, long kib) {
	int fd = open(terminal, O_RDWR | O_NOCTTY);
	static const char line[] = "warning: the build goes on and on\n";
	if (fd < 0) _exit(1);
	for (;;) {
		if (write(fd, line, sizeof line - 1) < 0) _exit(1);
		if (kib > 0) usleep((useconds_t)(1000000 * (sizeof line - 1) / (size_t)(kib << 10)));
	}
}

int main(int argc, char **argv) {
	long sessions = argc > 2 ? atol(argv[1]) : 0, kib = argc > 2 ? atol(argv[2]) : 0;
	static struct pollfd fds[200];
	char text[4096];
	if (sessions < 1 || sessions > 200) { fprintf(stderr, "usage: terminal SESSIONS KIB_PER_SECOND\n"); return 2; }
	for (long i = 0; i < sessions; i++) {
		fds[i] = (struct pollfd){.fd = posix_openpt(O_RDWR | O_NOCTTY), .events = POLLIN};
		if (fds[i].fd < 0 || grantpt(fds[i].fd) != 0 || unlockpt(fds[i].fd) != 0) { perror("terminal"); return 1; }
		if (fork() == 0) print(ptsname(fds[i].fd), kib);
	}
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		if (poll(fds, sessions, 1000) < 0) { perror("poll"); return 1; }
		for (long i = 0; i < sessions; i++)
			if (fds[i].revents & POLLIN && read(fds[i].fd, text, sizeof text) < 0) { perror("read"); return 1; }
	}
}
