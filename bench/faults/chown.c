// A pod with a volume of 24000 files is restarted again and again, and each start changes the owner and the mode
// of all of them, as Kubernetes does for fsGroup.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char name[64];
static const char *file(int i) { snprintf(name, sizeof name, "/data/volume/%03d/%d", i % 60, i); return name; }
int main(void) {
	mkdir("/data/volume", 0755);
	for (int i = 0; i < 60; i++) { snprintf(name, sizeof name, "/data/volume/%03d", i); mkdir(name, 0755); }
	for (int i = 0; i < 24000; i++) { int fd = open(file(i), O_WRONLY | O_CREAT, 0640); if (fd < 0) { perror("create"); return 1; } close(fd); }
	if (write(1, "ready\n", 6) < 0) return 1;
	for (unsigned round = 0;; round++) {
		for (int i = 0; i < 24000; i++) {
			if (chown(file(i), (uid_t)-1, 1000 + round % 2) || chmod(name, round % 2 ? 0660 : 0640)) { perror("chown"); return 1; }
			if (i % 500 == 499) { // the start writes how far it is, so that the next one can go on
				int fd = open("/data/progress", O_WRONLY | O_CREAT, 0600);
				if (fd < 0 || dprintf(fd, "%d\n", i) < 0 || fsync(fd)) { perror("progress"); return 1; }
				close(fd);
			}
		}
		usleep(300000);
	}
}
