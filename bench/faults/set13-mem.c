// set13-mem oom | heap MIB | thrash | leak: ways in which a container's memory goes wrong.
// oom: a master starts a worker again each time that the kernel has killed it at the container's limit.
// heap: a heap that fills the container's limit nearly. thrash: reads a file larger than the limit, at random.
// leak: 16 MiB a second, never freed, at most 900 MiB.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what) { perror(what); exit(1); }
static void ready(void) { printf("ready\n"); fflush(stdout); }
static char *get(size_t n) {
	char *m = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m == MAP_FAILED) fail("mmap");
	return m;
}
static void oom(void) {
	prctl(PR_SET_NAME, "gunicorn");
	for (int n = 0;; n++) {
		pid_t p = fork();
		if (p < 0) { usleep(200000); continue; }
		if (p == 0) {
			int fd = open("/proc/self/oom_score_adj", O_WRONLY); // the worker, not the master
			if (fd >= 0) { if (write(fd, "800", 3) < 0) perror("oom_score_adj"); close(fd); }
			for (int i = 0; i < 100; i++) { memset(get(8 << 20), 1, 8 << 20); usleep(30000); } // at most 800 MiB
			_exit(0);
		}
		int s;
		waitpid(p, &s, 0);
		if (n == 0) ready();
		printf("Worker (pid:%d) was sent SIGKILL! Perhaps out of memory? Booting worker\n", (int)p);
		fflush(stdout);
		usleep(200000);
	}
}
static void heap(size_t mib) {
	prctl(PR_SET_NAME, "java");
	char *m = get(mib << 20);
	memset(m, 1, mib << 20);
	ready();
	for (unsigned long n = 0;; n++) { // a little garbage
		char *p = m + ((n * 7 % mib) << 20);
		madvise(p, 1 << 20, MADV_DONTNEED);
		memset(p, 2, 1 << 20);
		usleep(20000);
	}
}
static const long size = 320L << 20;
static int fd;
static void *reads(void *p) {
	static __thread char buf[128 << 10];
	unsigned seed = (unsigned)(long)p;
	for (;;) { if (pread(fd, buf, sizeof buf, (off_t)(rand_r(&seed) % (size >> 17)) << 17) < 0) fail("read"); usleep(500); }
	return p;
}
static void thrash(void) {
	static char buf[1 << 20];
	prctl(PR_SET_NAME, "mongod");
	fd = open("/data/collection", O_RDWR | O_CREAT, 0600);
	if (fd < 0) fail("open");
	for (long i = 0; i < size; i += sizeof buf) {
		memset(buf, (int)(i >> 20), sizeof buf);
		if (pwrite(fd, buf, sizeof buf, i) < 0) fail("write");
		if (i >> 20 & 8) fdatasync(fd);
	}
	fsync(fd);
	for (long i = 0; i < 4; i++) { pthread_t t; pthread_create(&t, NULL, reads, (void *)(i + 1)); }
	ready();
	pause();
}
static void leak(void) {
	prctl(PR_SET_NAME, "node");
	for (int i = 0; i < 4; i++) { memset(get(16 << 20), 1, 16 << 20); usleep(500000); }
	ready();
	for (int i = 4; i < 56; i++) for (int j = 0; j < 16; j++) { memset(get(1 << 20), 1, 1 << 20); usleep(60000); }
	pause();
}
int main(int argc, char **argv) {
	const char *k = argc > 1 ? argv[1] : "";
	if (!strcmp(k, "oom")) oom();
	else if (!strcmp(k, "heap") && argc > 2) heap(atoi(argv[2]));
	else if (!strcmp(k, "thrash")) thrash();
	else if (!strcmp(k, "leak")) leak();
	fprintf(stderr, "usage: set13-mem oom | heap MIB | thrash | leak\n");
	return 2;
}
