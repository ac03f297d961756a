// set13-disk KIND: ways in which a container uses the disk.
// bulk: restores a dump, 1 MiB writes with O_DIRECT in three threads, in files of 128 MiB. wal: four threads that append
// 4 KiB and fdatasync(2). modules: unpacks and removes a tree of small files, in four threads. fill: keeps temporary files,
// 25 MiB/s, at most 2 GiB. deleted: writes to a log that has been deleted, 20 MiB/s, at most 2 GiB.
// log LINES: lines a second to stdout. rotate: 200 lines a second to stdout, and files that it rotates.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char buf[1 << 20];
static void fail(const char *what) { perror(what); exit(1); }
static void ready(void) { printf("ready\n"); fflush(stdout); }
static int make(const char *name, int flags) { int fd = open(name, O_WRONLY | O_CREAT | flags, 0600); if (fd < 0) fail(name); return fd; }

static void *bulk(void *p) {
	char name[64];
	void *m;
	if (posix_memalign(&m, 4096, 1 << 20)) fail("memalign");
	memset(m, 7, 1 << 20);
	snprintf(name, sizeof name, "/data/dump-%ld", (long)p);
	int fd = make(name, O_DIRECT);
	for (unsigned long n = 0;; n++) { if (pwrite(fd, m, 1 << 20, (off_t)(n % 128) << 20) < 0) fail("write"); if (n % 16 == 15) fdatasync(fd); }
	return p;
}
static void *wal(void *p) {
	char name[64];
	snprintf(name, sizeof name, "/data/wal-%ld", (long)p);
	for (;;) {
		int fd = make(name, O_TRUNC);
		for (int n = 0; n < 4096; n++) { if (write(fd, buf, 4096) < 0) fail("write"); fdatasync(fd); }
		close(fd);
	}
	return p;
}
static void *modules(void *p) {
	char d[64], f[128], g[128];
	struct stat st;
	for (;;) {
		for (int i = 0; i < 20; i++) {
			snprintf(d, sizeof d, "/data/m%ld-%d", (long)p, i);
			mkdir(d, 0700);
			for (int j = 0; j < 40; j++) {
				snprintf(f, sizeof f, "%s/.tmp-%d", d, j);
				snprintf(g, sizeof g, "%s/index-%d.js", d, j);
				int fd = make(f, O_TRUNC);
				if (write(fd, buf, 3000) < 0) fail("write");
				close(fd);
				if (rename(f, g) || stat(g, &st)) fail(g);
			}
			int fd = make(strcat(strcpy(f, d), "/package.json"), O_TRUNC);
			if (write(fd, buf, 500) < 0) fail("write");
			fsync(fd);
			close(fd);
		}
		for (int i = 0; i < 20; i++) {
			snprintf(d, sizeof d, "/data/m%ld-%d", (long)p, i);
			for (int j = 0; j < 40; j++) { snprintf(g, sizeof g, "%s/index-%d.js", d, j); unlink(g); }
			unlink(strcat(strcpy(f, d), "/package.json"));
			rmdir(d);
		}
	}
	return p;
}
static void threads(void *(*f)(void *), long n) { for (long i = 0; i < n; i++) { pthread_t t; if (pthread_create(&t, NULL, f, (void *)i)) fail("pthread_create"); } ready(); pause(); }
static void fill(void) {
	char name[64];
	ready();
	for (int n = 0; n < 82; n++) { // of 25 MiB
		snprintf(name, sizeof name, "/data/upload-%d.tmp", n);
		int fd = make(name, 0);
		for (int i = 0; i < 25; i++) { if (write(fd, buf, sizeof buf) < 0) fail("write"); usleep(38000); }
		fdatasync(fd);
		close(fd);
	}
	pause();
}
static void deleted(void) {
	int fd = make("/data/app.log", O_APPEND);
	unlink("/data/app.log");
	ready();
	for (int n = 0; n < 4000; n++) { if (write(fd, buf, 512 << 10) < 0) fail("write"); usleep(24000); if (n % 40 == 39) fdatasync(fd); }
	pause();
}
static void lines(long per_second) {
	long each = per_second / 50;
	ready();
	for (unsigned long n = 0;; n++) {
		for (long i = 0; i < each; i++) printf("2026-11-30T02:30:00.%06luZ DEBUG http.client request id=%lu method=GET path=/api/v1/items/%lu status=200 duration_ms=%lu headers={accept: */*, x-trace: %016lx} cache=miss retry=0\n", n % 1000000, n, n * 7 % 9973, n % 83, n * 2654435761UL);
		fflush(stdout);
		usleep(20000);
	}
}
static void rotate(void) {
	ready();
	for (unsigned long n = 0;; n++) {
		char name[64];
		snprintf(name, sizeof name, "/data/access-%lu.log", n / 100 % 3);
		int fd = make(name, n % 100 ? O_APPEND : O_TRUNC);
		for (int i = 0; i < 20; i++) printf("10.1.2.%lu - - \"GET /item/%lu HTTP/1.1\" 200 %lu\n", n % 250, n * 31 % 7919, n * 13 % 4096);
		fflush(stdout);
		if (write(fd, buf, 100 << 10) < 0) fail("write"); // 1 MB a second, three files of 10 MB
		close(fd);
		usleep(100000);
	}
}
int main(int argc, char **argv) {
	const char *k = argc > 1 ? argv[1] : "";
	unsigned seed = 1;
	for (size_t i = 0; i < sizeof buf; i++) buf[i] = (char)rand_r(&seed);
	prctl(PR_SET_NAME, !strcmp(k, "bulk") ? "pg_restore" : !strcmp(k, "wal") ? "etcd" : !strcmp(k, "modules") ? "npm" : "app");
	if (!strcmp(k, "bulk")) threads(bulk, 3);
	else if (!strcmp(k, "wal")) threads(wal, 4);
	else if (!strcmp(k, "modules")) threads(modules, 4);
	else if (!strcmp(k, "fill")) fill();
	else if (!strcmp(k, "deleted")) deleted();
	else if (!strcmp(k, "log") && argc > 2) lines(atol(argv[2]));
	else if (!strcmp(k, "rotate")) rotate();
	fprintf(stderr, "usage: set13-disk bulk | wal | modules | fill | deleted | log LINES | rotate\n");
	return 2;
}
