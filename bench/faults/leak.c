// leak KIND MOST PER_SECOND takes PER_SECOND things of one kind a second, up to MOST, keeps
// them, and sleeps. They are gone with the process, or with its namespaces.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static long number;
static int ok(int fd) { return fd >= 0 ? 0 : -1; }
static int take_memory(void) { char *m = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); if (m == MAP_FAILED) return -1; memset(m, 1, 1 << 20); return 0; }
static int take_fd(void) { return ok(open("/dev/null", O_RDONLY)); }
static int take_zombie(void) { pid_t p = fork(); if (p == 0) _exit(0); return ok(p); }
static int take_child(void) { pid_t p = fork(); if (p == 0) { pause(); _exit(0); } return ok(p); }
static void *sleeping(void *p) { pause(); return p; }
static int take_thread(void) { pthread_t t; pthread_attr_t a; pthread_attr_init(&a); pthread_attr_setstacksize(&a, 65536); return pthread_create(&t, &a, sleeping, NULL) ? -1 : 0; }
static int take_file(const char *dir, int drop) { // 1 MiB
	char n[64], b[4096] = {1};
	snprintf(n, sizeof n, "%s/leak-%ld", dir, number);
	int fd = open(n, O_WRONLY | O_CREAT, 0600);
	if (fd < 0) return -1;
	for (int i = 0; i < 256; i++) if (write(fd, b, sizeof b) < 0) return -1;
	if (drop) unlink(n); else close(fd);
	return 0;
}
static int take_shm(void) { return take_file("/dev/shm", 0); }
static int take_disk(void) { return take_file("/tmp", 0); }
static int take_deleted(void) { return take_file("/tmp", 1); }
static int take_inode(void) { char n[64]; snprintf(n, sizeof n, "/tmp/i-%ld", number); int fd = open(n, O_WRONLY | O_CREAT, 0600); close(fd); return ok(fd); }
static int take_missing(void) { struct stat s; char n[96]; snprintf(n, sizeof n, "/tmp/missing-%ld", number); stat(n, &s); return 0; }
static int take_inotify(void) { return ok(inotify_init()); }
static int take_watch(void) { static int fd = -1; char n[64]; if (fd < 0) fd = inotify_init(); snprintf(n, sizeof n, "/tmp/w-%ld", number); close(open(n, O_WRONLY | O_CREAT, 0600)); return ok(inotify_add_watch(fd, n, IN_MODIFY)); }
static int take_mount(void) { mkdir("/mnt", 0700); return mount("/proc", "/mnt", NULL, MS_BIND, NULL); }
static int take_segment(void) { int id = shmget(IPC_PRIVATE, 4096, 0600); return id; }
static int take_port(void) { // a connection to one address, kept open; a process has room for 8,000
	static int s = -1;
	static struct sockaddr_in at;
	socklen_t n = sizeof at;
	if (number && number % 8000 == 0) {
		if (fork()) for (;;) pause();
		for (int f = 3; f < 16100; f++) if (f != s) close(f); // the parent keeps its own
	}
	if (s < 0) {
		s = socket(AF_INET, SOCK_STREAM, 0);
		at.sin_family = AF_INET; at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		if (bind(s, (struct sockaddr *)&at, sizeof at) || listen(s, 128) || getsockname(s, (struct sockaddr *)&at, &n)) return -1;
	}
	struct sockaddr_in from = at; // chosen here, because the kernel searches long for the last free ports
	from.sin_port = htons(32768 + number);
	if (from.sin_port == at.sin_port) return 0;
	int c = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(c, (struct sockaddr *)&from, sizeof from)) return -1;
	if (connect(c, (struct sockaddr *)&at, sizeof at)) { close(c); return -1; }
	return ok(accept(s, NULL, NULL));
}
static int take_flow(void) { // one UDP flow, in a network namespace whose firewall tracks connections
	static int s[64];
	struct sockaddr_in at = {.sin_family = AF_INET};
	int *fd = &s[number % 8];
	if (!*fd) *fd = socket(AF_INET, SOCK_DGRAM, 0);
	at.sin_port = htons(1024 + number / 8 % 60000); at.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + number / 480000);
	return sendto(*fd, "x", 1, 0, (struct sockaddr *)&at, sizeof at) < 0 ? -1 : 0;
}

static const struct { const char *name; int (*take)(void); } kinds[] = {
	{"memory", take_memory},     // 1 MiB each
	{"fd", take_fd},             // getrlimit(2): RLIMIT_NOFILE
	{"zombie", take_zombie},     // wait(2)
	{"child", take_child},       // Documentation/admin-guide/cgroup-v2.rst: pids.max
	{"thread", take_thread},
	{"shm", take_shm},           // tmpfs(5), 1 MiB each
	{"disk", take_disk},
	{"deleted", take_deleted},   // unlink(2): the space stays until the last close
	{"inode", take_inode},
	{"missing", take_missing},   // negative dentries
	{"inotify", take_inotify},   // inotify(7): max_user_instances
	{"watch", take_watch},       // inotify(7): max_user_watches
	{"mount", take_mount},       // Documentation/admin-guide/sysctl/fs.rst: mount-max
	{"segment", take_segment},   // shmget(2): shmmni
	{"port", take_port},         // ip(7): ip_local_port_range
	{"flow", take_flow},         // Documentation/networking/nf_conntrack-sysctl.rst
};

int main(int argc, char **argv) {
	int kind = 0, kinds_n = sizeof kinds / sizeof *kinds;
	for (; argc > 1 && kind < kinds_n; kind++) if (strcmp(kinds[kind].name, argv[1]) == 0) break;
	long most = argc > 2 ? atol(argv[2]) : 0;
	double rate = argc > 3 ? atof(argv[3]) : 0;
	if (argc < 4 || kind == kinds_n || most < 1 || rate <= 0) { fprintf(stderr, "usage: leak KIND MOST PER_SECOND [USER [FILES]]\n"); return 2; }
	if (argc > 5) { struct rlimit r = {atol(argv[5]), atol(argv[5])}; if (setrlimit(RLIMIT_NOFILE, &r)) { perror("setrlimit"); return 1; } }
	if (argc > 4 && atoi(argv[4]) && setuid(atoi(argv[4]))) { perror("setuid"); return 1; }
	printf("ready\n");
	fflush(stdout);
	long each = rate > 1000 ? (long)(rate / 1000) : 1;
	while (number < most) {
		for (long i = 0; i < each && number < most; i++, number++) if (kinds[kind].take() < 0) goto full;
		usleep((useconds_t)(1e6 * each / rate));
	}
full:
	fprintf(stderr, "%ld taken\n", number);
	for (;;) pause();
}
