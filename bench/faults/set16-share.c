/* A mounted share of the host whose server no longer answers, and CLIENTS programs that wait for it.
   The mount is in a mount namespace of its own and ends with the program. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

static void tick(int s) { (void)s; }

int main(int argc, char **argv) {
	int clients = argc > 1 ? atoi(argv[1]) : 6;
	const char *dir = "/mnt";
	char opt[200], buf[1 << 17];
	int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (fd < 0) { perror("/dev/fuse"); return 1; }
	if (unshare(CLONE_NEWNS) || mount("none", "/", 0, MS_REC | MS_PRIVATE, 0)) { perror("namespace"); return 1; }
	snprintf(opt, sizeof opt, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd);
	if (mount("files@storage:/export", dir, "fuse.sshfs", MS_NOSUID | MS_NODEV, opt)) { perror("mount"); return 1; }
	ssize_t n = read(fd, buf, sizeof buf);
	if (n < (ssize_t)sizeof(struct fuse_in_header)) { perror("init"); return 1; }
	struct fuse_in_header *in = (void *)buf;
	struct fuse_init_in *ask = (void *)(buf + sizeof *in);
	struct { struct fuse_out_header h; struct fuse_init_out o; } reply;
	memset(&reply, 0, sizeof reply);
	reply.h.len = sizeof reply; reply.h.unique = in->unique;
	reply.o.major = FUSE_KERNEL_VERSION;
	reply.o.minor = ask->minor < FUSE_KERNEL_MINOR_VERSION ? ask->minor : FUSE_KERNEL_MINOR_VERSION;
	reply.o.max_readahead = ask->max_readahead; reply.o.max_write = 65536; reply.o.max_background = 12; reply.o.congestion_threshold = 9;
	if (write(fd, &reply, sizeof reply) < 0) { perror("reply"); return 1; }
	pid_t pids[64];
	if (clients > 64) clients = 64;
	for (int i = 0; i < clients; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			close(fd);
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			struct sigaction a = { .sa_handler = tick, .sa_flags = SA_RESTART };
			sigaction(SIGALRM, &a, 0);
			char name[64];
			struct stat s;
			snprintf(name, sizeof name, "/mnt/reports/%d.csv", i);
			stat(name, &s);
			for (;;) pause();
		}
	}
	/* The requests arrive and stay unanswered; a signal lets the clients wait uninterruptibly. */
	fcntl(fd, F_SETFL, O_NONBLOCK);
	for (int i = 0; i < 10; i++) { usleep(100000); while (read(fd, buf, sizeof buf) > 0); }
	for (int i = 0; i < clients; i++) kill(pids[i], SIGALRM);
	for (int i = 0; i < 5; i++) { usleep(100000); while (read(fd, buf, sizeof buf) > 0); }
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
