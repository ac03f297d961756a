// service KIND: an ordinary service under light load, which others may disturb. KIND: cpu (2 ms of work every
// 10 ms), busy (works all the time), disk (a record and fsync(2) every 50 ms), open (opens ten files every 10 ms),
// read (reads 64 KiB of a file of 400 MiB every 4 ms), calls (many cheap system calls), spawn (a process every 50 ms),
// write (a burst of 64 MiB through the page cache every second), aio and pipe (a new context or pipe every 50 ms),
// huge (256 MiB that ask for huge pages), rights (passes a file descriptor every 50 ms).
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char buf[1 << 20];
static void fail(const char *what) { perror(what); exit(1); }
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void work(double seconds) { for (double end = now() + seconds; now() < end;) for (volatile int i = 0; i < 1000; i++); }
static void put(int fd, const void *p, size_t n, off_t at) { if (pwrite(fd, p, n, at) != (ssize_t)n) fail("write"); }

int main(int argc, char **argv) {
	const char *kind = argc > 1 ? argv[1] : "cpu";
	const long size = 400L << 20;
	char name[64];
	int fd = -1, s[2];
	prctl(PR_SET_NAME, "orders-db");
	if (!strcmp(kind, "disk") || !strcmp(kind, "read") || !strcmp(kind, "write")) {
		fd = open("/data/records", O_RDWR | O_CREAT, 0600);
		if (fd < 0) fail("open");
	}
	if (!strcmp(kind, "read")) for (long i = 0; i < size; i += sizeof buf) { memset(buf, (int)(i >> 20), sizeof buf); put(fd, buf, sizeof buf, i); }
	if (!strcmp(kind, "read")) fsync(fd);
	if (!strcmp(kind, "open")) for (int i = 0; i < 10; i++) {
		snprintf(name, sizeof name, "/data/page-%d", i);
		int f = open(name, O_WRONLY | O_CREAT, 0600);
		if (f < 0) fail("open");
		put(f, buf, 4096, 0);
		close(f);
	}
	if (!strcmp(kind, "huge")) {
		char *m = mmap(NULL, 256L << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (m == MAP_FAILED) fail("mmap");
		madvise(m, 256L << 20, MADV_HUGEPAGE);
		for (long i = 0; i < 256L << 20; i += 4096) m[i] = 1;
	}
	if (!strcmp(kind, "rights") && socketpair(AF_UNIX, SOCK_STREAM, 0, s)) fail("socketpair");
	printf("ready\n");
	fflush(stdout);
	for (unsigned long n = 0;; n++) {
		if (!strcmp(kind, "cpu") || !strcmp(kind, "huge")) { work(0.002); usleep(8000); }
		else if (!strcmp(kind, "busy")) work(0.01);
		else if (!strcmp(kind, "disk")) { put(fd, buf, 4096, 4096 * (n % 2048)); fsync(fd); usleep(50000); }
		else if (!strcmp(kind, "open")) {
			for (int i = 0; i < 10; i++) {
				snprintf(name, sizeof name, "/data/page-%d", i);
				int f = open(name, O_RDONLY);
				if (f < 0 || read(f, buf, 4096) < 0) fail("read");
				close(f);
			}
			usleep(10000);
		}
		else if (!strcmp(kind, "read")) { if (pread(fd, buf, 65536, (random() % (size >> 16)) << 16) < 0) fail("read"); usleep(4000); }
		else if (!strcmp(kind, "calls")) { for (int i = 0; i < 2000; i++) syscall(SYS_getppid); work(0.0005); usleep(2000); }
		else if (!strcmp(kind, "spawn")) { pid_t p = fork(); if (p == 0) _exit(0); if (p > 0) waitpid(p, NULL, 0); usleep(50000); }
		else if (!strcmp(kind, "write")) { for (int i = 0; i < 64; i++) put(fd, buf, sizeof buf, (off_t)(n % 8 * 64 + i) << 20); usleep(900000); }
		else if (!strcmp(kind, "aio")) { aio_context_t c = 0; if (syscall(SYS_io_setup, 128, &c) == 0) syscall(SYS_io_destroy, c); usleep(50000); }
		else if (!strcmp(kind, "pipe")) {
			int p[2];
			if (pipe2(p, O_NONBLOCK)) fail("pipe");
			for (int i = 0; i < 4; i++) { ssize_t w = write(p[1], buf, 65536), r = w > 0 ? read(p[0], buf, 65536) : 0; if (r < 0) fail("read"); }
			close(p[0]); close(p[1]);
			usleep(50000);
		}
		else if (!strcmp(kind, "rights")) {
			union { char b[CMSG_SPACE(sizeof(int))]; struct cmsghdr h; } c = {{0}};
			char d[CMSG_SPACE(sizeof(int))];
			struct iovec v = {buf, 1};
			struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = c.b, .msg_controllen = sizeof c.b};
			c.h.cmsg_level = SOL_SOCKET; c.h.cmsg_type = SCM_RIGHTS; c.h.cmsg_len = CMSG_LEN(sizeof(int));
			memcpy(CMSG_DATA(&c.h), &s[0], sizeof(int));
			if (sendmsg(s[0], &m, 0) == 1) {
				int got = -1;
				m.msg_control = d; m.msg_controllen = sizeof d;
				if (recvmsg(s[1], &m, 0) < 0) fail("recvmsg");
				struct cmsghdr *h = CMSG_FIRSTHDR(&m);
				if (h) { memcpy(&got, CMSG_DATA(h), sizeof got); close(got); }
			}
			usleep(50000);
		}
		else fail(kind);
	}
}
