// A job runner outside of the containers leaves one sleeping helper with a mount namespace of its own for
// each job, 8 a second, at most 600: copies of the mount table pile up, each with ten file systems of its own that
// sync(2) and the reclaim of memory visit one by one (mount_namespaces(7)).
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(void) {
	if (write(1, "ready\n", 6) < 0) return 1;
	for (int i = 0; i < 600; i++) {
		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL)) { perror("unshare"); _exit(1); }
			for (int j = 0; j < 10; j++) if (mount("job", "/mnt", "tmpfs", 0, "size=1m")) { perror("mount"); break; }
			for (;;) pause();
		}
		usleep(125000);
	}
	for (;;) pause();
}
