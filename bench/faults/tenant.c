// tenant KIND: a healthy tenant of the host, whom others may disturb. KIND: cpu (2 ms of work every 10 ms), core (the same
// on one CPU), fsync (a small record and fdatasync(2) every 40 ms), bulk (16 MiB and fdatasync(2) every 0.4 s), read
// (64 KiB of a file of 160 MiB every 3 ms), spawn (a process every 30 ms), calls (many cheap system calls), mqueue (a new
// message queue every 0.5 s), udp (bursts of 80 datagrams to each of 16 sockets).
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char buf[1 << 20];
static void fail(const char *what) { perror(what); exit(1); }
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void work(double s) { for (double end = now() + s; now() < end;) for (volatile int i = 0; i < 1000; i++); }

int main(int argc, char **argv) {
	const char *k = argc > 1 ? argv[1] : "cpu";
	const long chunks = (160L << 20) / sizeof buf;
	int fd = -1, in[16], out = -1;
	struct sockaddr_in to[16];
	if (!strcmp(k, "core")) {
		cpu_set_t all, one;
		sched_getaffinity(0, sizeof all, &all);
		CPU_ZERO(&one);
		for (int c = 0; c < CPU_SETSIZE; c++) if (CPU_ISSET(c, &all)) { CPU_SET(c, &one); break; }
		if (sched_setaffinity(0, sizeof one, &one)) fail("sched_setaffinity");
	}
	if (!strcmp(k, "fsync") || !strcmp(k, "bulk") || !strcmp(k, "read")) {
		fd = open("/data/tenant", O_RDWR | O_CREAT, 0600);
		if (fd < 0) fail("open");
	}
	if (!strcmp(k, "read")) {
		for (long i = 0; i < chunks; i++) { memset(buf, (int)i, sizeof buf); if (pwrite(fd, buf, sizeof buf, i * sizeof buf) < 0) fail("write"); }
		fsync(fd);
	}
	if (!strcmp(k, "udp")) {
		out = socket(AF_INET, SOCK_DGRAM, 0);
		for (int i = 0; i < 16; i++) {
			socklen_t n = sizeof to[i];
			memset(&to[i], 0, n);
			to[i].sin_family = AF_INET;
			to[i].sin_addr.s_addr = htonl(INADDR_LOOPBACK);
			in[i] = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
			if (in[i] < 0 || bind(in[i], (void *)&to[i], n) || getsockname(in[i], (void *)&to[i], &n)) fail("bind");
		}
	}
	printf("ready\n");
	fflush(stdout);
	for (unsigned long n = 0, lost = 0;; n++) {
		if (!strcmp(k, "cpu") || !strcmp(k, "core")) { work(0.002); usleep(8000); }
		else if (!strcmp(k, "fsync")) { if (pwrite(fd, buf, 4096, 4096 * (n % 1024)) < 0) fail("write"); fdatasync(fd); usleep(40000); }
		else if (!strcmp(k, "bulk")) {
			for (int i = 0; i < 16; i++) if (pwrite(fd, buf, sizeof buf, (long)(n % 4 * 16 + i) << 20) < 0) fail("write");
			fdatasync(fd);
			usleep(400000);
		}
		else if (!strcmp(k, "read")) { if (pread(fd, buf, 65536, random() % (chunks * 16) << 16) < 0) fail("read"); usleep(3000); }
		else if (!strcmp(k, "spawn")) { pid_t p = fork(); if (p == 0) _exit(0); if (p > 0) waitpid(p, NULL, 0); usleep(30000); }
		else if (!strcmp(k, "calls")) { struct stat s; for (int i = 0; i < 1000; i++) { syscall(SYS_getppid); stat("/tmp", &s); } usleep(8000); }
		else if (!strcmp(k, "mqueue")) {
			int q = syscall(SYS_mq_open, "orders", O_RDWR | O_CREAT, 0600, NULL);
			if (q < 0) { if (n % 20 == 0) fprintf(stderr, "mq_open: %s\n", strerror(errno)); }
			else { syscall(SYS_mq_unlink, "orders"); close(q); }
			usleep(500000);
		}
		else if (!strcmp(k, "udp")) {
			int got = 0;
			for (int i = 0; i < 16 * 80; i++) sendto(out, buf, 1000, 0, (void *)&to[i % 16], sizeof to[0]);
			for (int i = 0; i < 16; i++) while (recv(in[i], buf, sizeof buf, 0) > 0) got++;
			lost += 16 * 80 - got;
			if (n % 50 == 49 && lost) { fprintf(stderr, "lost %lu datagrams\n", lost); lost = 0; }
			usleep(200000);
		}
		else { fprintf(stderr, "no such kind: %s\n", k); return 2; }
	}
}
