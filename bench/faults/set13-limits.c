// set13-limits KIND: what leaks until a limit is reached.
// zombies: orphans that the container's first process never waits for. threads: a thread for each request, never ended.
// tabs: helper processes that nothing ends. sockets: accepted connections that are never closed, CLOSE_WAIT, up to
// RLIMIT_NOFILE. watchers: inotify instances, up to fs.inotify.max_user_instances less 6. shm: files in /dev/shm until it is full.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what) { perror(what); exit(1); }
static void ready(void) { static int done; if (!done++) { printf("ready\n"); fflush(stdout); } }
static void *sleeps(void *p) { for (;;) pause(); return p; }

static void zombies(void) {
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	for (int n = 0;; n++) {
		pid_t p = fork();
		int status = 0;
		if (p == 0) { pid_t o = fork(); if (o == 0) { usleep(30000); _exit(0); } _exit(o < 0); } // the orphan is ours, and becomes a zombie
		if (p > 0) waitpid(p, &status, 0);
		if (p < 0 || status) { ready(); usleep(250000); continue; } // can't fork: Resource temporarily unavailable
		usleep(n < 400 ? 5000 : 100000);
	}
}
static void threads(void) {
	pthread_attr_t a;
	pthread_attr_init(&a);
	pthread_attr_setstacksize(&a, 64 << 10);
	for (int n = 0; n < 5000;) { pthread_t t; if (pthread_create(&t, &a, sleeps, NULL)) { ready(); usleep(200000); } else { n++; usleep(5000); } }
}
static void tabs(void) {
	for (int n = 0; n < 5000;) {
		pid_t p = fork();
		if (p == 0) { prctl(PR_SET_NAME, "chrome"); setsid(); for (;;) sleep(5); }
		if (p < 0) { ready(); usleep(300000); } else { n++; usleep(8000); }
	}
}
static void sockets(void) {
	struct rlimit r = {1024, 1024};
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof to;
	int s = socket(AF_INET, SOCK_STREAM, 0);
	setrlimit(RLIMIT_NOFILE, &r);
	if (s < 0 || bind(s, (struct sockaddr *)&to, sizeof to) || getsockname(s, (struct sockaddr *)&to, &n) || listen(s, 4096)) fail("listen");
	if (fork() == 0) for (unsigned long i = 0;; i++) { // clients: a request, then they go away
		int c = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(c, (struct sockaddr *)&to, sizeof to) == 0 && write(c, "GET / HTTP/1.1\r\n\r\n", 18) < 0) perror("write");
		close(c);
		usleep(i < 1100 ? 2000 : 200000);
	}
	for (;;) if (accept(s, NULL, NULL) < 0) { if (errno == EMFILE) ready(); usleep(100000); }
}
static void watchers(void) {
	static int fds[4096];
	int n = 0;
	for (;;) {
		int fd;
		while (n < 4096 && (fd = inotify_init1(IN_CLOEXEC)) >= 0) { inotify_add_watch(fd, "/", IN_CREATE); fds[n++] = fd; }
		for (int i = 0; i < 6 && n > 0; i++) close(fds[--n]);
		ready();
		sleep(2);
	}
}
static void shm(void) {
	static char buf[1 << 20];
	struct statvfs v;
	char name[64];
	memset(buf, 1, sizeof buf);
	if (statvfs("/dev/shm", &v)) fail("/dev/shm");
	for (int i = 0; i < 512; i++) { // at most 512 MiB
		snprintf(name, sizeof name, "/dev/shm/PostgreSQL.%d", i);
		int fd = open(name, O_RDWR | O_CREAT, 0600);
		if (fd < 0 || write(fd, buf, sizeof buf) != sizeof buf) break;
		close(fd);
	}
	ready();
	for (int i = 0;; i++) {
		int fd = open("/dev/shm/query", O_RDWR | O_CREAT, 0600);
		if (fd >= 0) { int e = posix_fallocate(fd, 0, 8 << 20); if (e && i % 20 == 0) { printf("ERROR: could not resize shared memory segment to 8388608 bytes: %s\n", strerror(e)); fflush(stdout); } close(fd); unlink("/dev/shm/query"); }
		usleep(100000);
	}
}
int main(int argc, char **argv) {
	static const struct { const char *name; void (*f)(void); const char *comm; } kinds[] = {
		{"zombies", zombies, "node"}, {"threads", threads, "java"}, {"tabs", tabs, "puppeteer"},
		{"sockets", sockets, "gateway"}, {"watchers", watchers, "devserver"}, {"shm", shm, "postgres"}};
	for (size_t i = 0; argc > 1 && i < sizeof kinds / sizeof *kinds; i++)
		if (!strcmp(argv[1], kinds[i].name)) { prctl(PR_SET_NAME, kinds[i].comm); kinds[i].f(); pause(); }
	fprintf(stderr, "usage: set13-limits zombies | threads | tabs | sockets | watchers | shm\n");
	return 2;
}
