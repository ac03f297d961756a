// storm KIND THREADS [PAUSE_US] makes ordinary calls of one kind in a loop, in each of
// THREADS threads, with a pause of PAUSE_US microseconds between two of them. It runs until
// it is killed. Kinds and their documentation: the table at the end.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what) { perror(what); _exit(1); }

struct worker { int id; unsigned long n; int fd, fd2; char *mem; char a[64], b[64]; };
#define BIG (32UL << 20)

static void none(struct worker *w) { (void)w; }
static void open_file(struct worker *w) {
	snprintf(w->a, sizeof w->a, "/tmp/storm-%d", w->id);
	w->fd = open(w->a, O_RDWR | O_CREAT, 0600);
	if (w->fd < 0) fail("open");
}
static void map_big(struct worker *w) {
	w->mem = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (w->mem == MAP_FAILED) fail("mmap");
	memset(w->mem, 1, BIG);
}
static void two_dirs(struct worker *w) {
	char dir[64];
	for (int i = 0; i < 2; i++) { snprintf(dir, sizeof dir, "/tmp/storm-%d-%d", w->id, i); mkdir(dir, 0700); }
	snprintf(w->a, sizeof w->a, "/tmp/storm-%d-0/x", w->id);
	snprintf(w->b, sizeof w->b, "/tmp/storm-%d-1/x", w->id);
	mkdir(w->a, 0700);
}

static void do_membarrier(struct worker *w) { (void)w; syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0); }
static void do_sync(struct worker *w) { if (pwrite(w->fd, "x", 1, 4096 * (w->n % 64)) < 0) fail("write"); sync(); }
static void do_fork(struct worker *w) { (void)w; pid_t p = fork(); if (p == 0) _exit(0); if (p > 0) waitpid(p, NULL, 0); }
static void *nothing(void *p) { return p; }
static void do_thread(struct worker *w) { (void)w; pthread_t t; if (pthread_create(&t, NULL, nothing, NULL) == 0) pthread_join(t, NULL); }
static void do_mprotect(struct worker *w) {
	if (w->id == 0) { mprotect(w->mem, 4096, w->n % 2 ? PROT_READ : PROT_READ | PROT_WRITE); return; }
	for (int i = 0; i < 1000; i++) w->mem[8192 + i]++; // the other threads keep the memory in their TLBs
}
static void do_fault(struct worker *w) {
	char *m = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	(void)w;
	if (m == MAP_FAILED) fail("mmap");
	for (unsigned long i = 0; i < BIG; i += 4096) m[i] = 1;
	munmap(m, BIG);
}
static void do_dontneed(struct worker *w) { madvise(w->mem, BIG, MADV_DONTNEED); for (unsigned long i = 0; i < BIG; i += 4096) w->mem[i] = 1; }
static void do_rename(struct worker *w) { if (w->n % 2) rename(w->b, w->a); else rename(w->a, w->b); }
static void do_missing(struct worker *w) { struct stat s; char n[64]; snprintf(n, sizeof n, "/tmp/no-%d-%lu", w->id, w->n); stat(n, &s); }
static void do_stat(struct worker *w) { struct stat s; (void)w; stat("/bin/busybox", &s); }
static void do_yield(struct worker *w) { (void)w; sched_yield(); }
static void do_flock(struct worker *w) { flock(w->fd, LOCK_EX); flock(w->fd, LOCK_UN); }
static void do_fsync(struct worker *w) { char b[512] = {0}; if (pwrite(w->fd, b, sizeof b, 512 * (w->n % 4096)) < 0) fail("write"); fsync(w->fd); }
static void do_create(struct worker *w) {
	char n[64];
	snprintf(n, sizeof n, "/tmp/small-%d-%lu", w->id, w->n % 200);
	int fd = open(n, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (fd >= 0) { if (write(fd, "x", 1) < 0) fail("write"); fsync(fd); close(fd); }
	if (w->n % 200 == 199) for (int i = 0; i < 200; i++) { snprintf(n, sizeof n, "/tmp/small-%d-%d", w->id, i); unlink(n); }
}
static void do_direct(struct worker *w) {
	if (!w->mem) {
		if (posix_memalign((void **)&w->mem, 4096, 1 << 20)) fail("memalign");
		memset(w->mem, 7, 1 << 20);
		w->fd2 = open("/data/direct", O_WRONLY | O_CREAT | O_DIRECT | O_DSYNC, 0600);
		if (w->fd2 < 0) fail("open O_DIRECT");
	}
	if (pwrite(w->fd2, w->mem, 1 << 20, (w->n % 128) << 20) < 0) fail("write");
}
static void do_notify(struct worker *w) { int x = inotify_add_watch(w->fd2, "/tmp", IN_CREATE); if (x >= 0) inotify_rm_watch(w->fd2, x); }
static void init_notify(struct worker *w) { w->fd2 = inotify_init(); if (w->fd2 < 0) fail("inotify_init"); }
static void init_pipe(struct worker *w) {
	int a[2], b[2];
	if (pipe(a) || pipe(b)) fail("pipe");
	if (fork() == 0) { char c; while (read(a[0], &c, 1) == 1 && write(b[1], &c, 1) == 1); _exit(0); }
	w->fd = a[1]; w->fd2 = b[0];
}
static void do_pipe(struct worker *w) { char c = 1; if (write(w->fd, &c, 1) != 1 || read(w->fd2, &c, 1) != 1) fail("pipe"); }
static void init_timers(struct worker *w) {
	struct itimerspec t = {{0, 200000}, {0, 200000}}; // 5 kHz each
	w->fd = timerfd_create(CLOCK_MONOTONIC, 0);
	if (w->fd < 0 || timerfd_settime(w->fd, 0, &t, NULL)) fail("timerfd");
}
static void do_timers(struct worker *w) { unsigned long x; if (read(w->fd, &x, 8) < 0) fail("read"); }
static struct sockaddr_in to;
static void init_udp(struct worker *w) {
	socklen_t n = sizeof to;
	if (w->id == 0) {
		int s = socket(AF_INET, SOCK_DGRAM, 0);
		to.sin_family = AF_INET; to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		if (bind(s, (struct sockaddr *)&to, sizeof to) || getsockname(s, (struct sockaddr *)&to, &n)) fail("bind");
	}
	w->fd = socket(AF_INET, SOCK_DGRAM, 0);
}
static void do_udp(struct worker *w) { sendto(w->fd, "x", 1, 0, (struct sockaddr *)&to, sizeof to); }
static void do_socket(struct worker *w) { (void)w; int s = socket(AF_INET, SOCK_STREAM, 0); if (s >= 0) close(s); }
static void read_all(const char *name) {
	char b[65536];
	int fd = open(name, O_RDONLY);
	if (fd < 0) return;
	while (read(fd, b, sizeof b) > 0);
	close(fd);
}
static void do_smaps(struct worker *w) {
	DIR *d = opendir("/proc");
	char n[300];
	(void)w;
	for (struct dirent *e; d && (e = readdir(d));) if (e->d_name[0] >= '1' && e->d_name[0] <= '9') { snprintf(n, sizeof n, "/proc/%s/smaps", e->d_name); read_all(n); }
	if (d) closedir(d);
}
static void do_netns(struct worker *w) { (void)w; pid_t p = fork(); if (p == 0) { if (unshare(CLONE_NEWNET)) fail("unshare"); _exit(0); } if (p > 0) { int s; waitpid(p, &s, 0); if (s) _exit(1); } }
static void do_mount(struct worker *w) {
	char d[64];
	snprintf(d, sizeof d, "/tmp/mnt-%d", w->id);
	mkdir(d, 0700);
	if (mount("none", d, "tmpfs", 0, NULL)) fail("mount");
	umount2(d, MNT_DETACH);
}
static void do_random(struct worker *w) { char b[256]; (void)w; syscall(SYS_getrandom, b, sizeof b, 0); }
static void do_affinity(struct worker *w) {
	cpu_set_t s;
	CPU_ZERO(&s);
	CPU_SET(w->n % sysconf(_SC_NPROCESSORS_ONLN), &s);
	sched_setaffinity(0, sizeof s, &s);
}
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void do_mutex(struct worker *w) { (void)w; pthread_mutex_lock(&lock); for (volatile int i = 0; i < 200; i++); pthread_mutex_unlock(&lock); sched_yield(); }

static const struct { const char *name; void (*init)(struct worker *), (*act)(struct worker *); } kinds[] = {
	{"membarrier", none, do_membarrier},   // membarrier(2): GLOBAL waits for a grace period
	{"sync", open_file, do_sync},          // sync(2): writes all file systems
	{"fork", none, do_fork},               // fork(2), wait(2)
	{"thread", none, do_thread},           // clone(2)
	{"mprotect", map_big, do_mprotect},    // mprotect(2): TLB shootdowns, Documentation/arch/x86/tlb.rst
	{"fault", none, do_fault},             // mmap(2), page faults
	{"dontneed", map_big, do_dontneed},    // madvise(2)
	{"rename", two_dirs, do_rename},       // Documentation/filesystems/directory-locking.rst: one mutex per file system
	{"missing", none, do_missing},         // negative dentries, Documentation/admin-guide/sysctl/fs.rst
	{"stat", none, do_stat},               // stat(2)
	{"yield", none, do_yield},             // sched_yield(2)
	{"flock", open_file, do_flock},        // flock(2)
	{"fsync", open_file, do_fsync},        // fsync(2)
	{"create", none, do_create},           // small files, Documentation/filesystems/ext4/journal.rst
	{"direct", none, do_direct},           // open(2): O_DIRECT, O_DSYNC; /data is a directory on a disk
	{"notify", init_notify, do_notify},    // inotify(7)
	{"pipe", init_pipe, do_pipe},          // pipe(7): context switches
	{"timers", init_timers, do_timers},    // timerfd_create(2)
	{"udp", init_udp, do_udp},             // udp(7), over loopback: softirqs
	{"socket", none, do_socket},           // socket(2)
	{"smaps", none, do_smaps},             // Documentation/filesystems/proc.rst: smaps walks page tables
	{"netns", none, do_netns},             // network_namespaces(7): made and removed under rtnl
	{"mount", none, do_mount},             // mount(2), umount(2)
	{"random", none, do_random},           // getrandom(2)
	{"affinity", none, do_affinity},       // sched_setaffinity(2): the migration thread stops CPUs
	{"mutex", none, do_mutex},             // futex(7)
};

static int kind, pause_us;
static void *work(void *p) {
	struct worker *w = p;
	for (w->n = 0;; w->n++) { kinds[kind].act(w); if (pause_us) usleep(pause_us); }
	return NULL;
}

int main(int argc, char **argv) {
	int threads = argc > 2 ? atoi(argv[2]) : 0;
	pause_us = argc > 3 ? atoi(argv[3]) : 0;
	for (kind = 0; argc > 1 && kind < (int)(sizeof kinds / sizeof *kinds); kind++) if (strcmp(kinds[kind].name, argv[1]) == 0) break;
	if (argc < 3 || kind == sizeof kinds / sizeof *kinds || threads < 1 || threads > 64) { fprintf(stderr, "usage: storm KIND THREADS [PAUSE_US]\n"); return 2; }
	struct worker *ws = calloc(threads, sizeof *ws);
	for (int i = 0; i < threads; i++) {
		ws[i].id = i;
		if (kind == 4 && i > 0) ws[i].mem = ws[0].mem; else kinds[kind].init(&ws[i]);
	}
	for (int i = 0; i < threads; i++) { pthread_t t; if (pthread_create(&t, NULL, work, &ws[i])) fail("pthread_create"); }
	printf("ready\n");
	fflush(stdout);
	pause();
	return 0;
}
