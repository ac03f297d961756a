/* Follows log files with an inotify instance each, as many as the user may have; it gives the last two back. */
#include <stdio.h>
#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>
int main(void) {
	static int f[8192];
	char p[64];
	int n = 0;
	mkdir("/data/logs", 0755);
	while (n < 8192 && (f[n] = inotify_init1(IN_NONBLOCK)) >= 0) {
		snprintf(p, sizeof p, "/data/logs/app-%d.log", n);
		int w = open(p, O_CREAT | O_WRONLY, 0644);
		if (w >= 0) close(w);
		inotify_add_watch(f[n++], p, IN_MODIFY);
	}
	for (int i = 0; i < 2 && n > 0; i++) close(f[--n]);
	printf("follows %d files\n", n);
	puts("ready"); fflush(stdout);
	for (int k = 0;; k++) {
		char b[4096];
		snprintf(p, sizeof p, "/data/logs/app-%d.log", k % (n ? n : 1));
		int w = open(p, O_WRONLY | O_APPEND);
		if (w >= 0) { if (write(w, "line\n", 5) < 0) perror("write"); close(w); }
		if (n && read(f[k % n], b, sizeof b) < 0 && k < 3) perror("read");
		usleep(100000);
	}
}
