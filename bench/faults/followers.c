// followers: a log shipper makes one inotify instance for each file that it follows, until the user of root has
// only a few left (fs.inotify.max_user_instances, which all containers without user namespaces share).
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <unistd.h>

int main(void) {
	static int fds[4096];
	char name[64];
	int n = 0, max = 128, spare;
	struct rlimit r;
	FILE *f = fopen("/proc/sys/fs/inotify/max_user_instances", "r");
	if (f) { if (fscanf(f, "%d", &max) != 1) max = 128; fclose(f); }
	if (getrlimit(RLIMIT_NOFILE, &r) == 0) { r.rlim_cur = r.rlim_max; setrlimit(RLIMIT_NOFILE, &r); }
	while (n < 4096 && (fds[n] = inotify_init1(IN_CLOEXEC)) >= 0) {
		snprintf(name, sizeof name, "/tmp/app-%d.log", n % 40);
		int l = open(name, O_WRONLY | O_CREAT, 0600);
		if (l >= 0) close(l);
		inotify_add_watch(fds[n++], name, IN_MODIFY);
	}
	spare = max / 25 > 3 ? max / 25 : 3;
	for (int i = 0; i < spare && n > 1; i++) close(fds[--n]);
	printf("ready\n");
	fflush(stdout);
	for (;;) sleep(1);
}
