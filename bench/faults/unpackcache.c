// unpackcache: an importer with a memory limit of 64 MiB writes archives of 240 MiB through the page cache. All of its
// memory is dirty cache, so that each of its pages waits for reclaim and writeback in its own group.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char buf[1 << 18];
int main(void) {
	char name[64];
	memset(buf, 5, sizeof buf);
	printf("ready\n");
	fflush(stdout);
	for (int n = 0;; n++) {
		snprintf(name, sizeof name, "/data/archive-%d", n % 2);
		int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
		if (fd < 0) { perror("open"); return 1; }
		for (int i = 0; i < 960; i++) { if (write(fd, buf, sizeof buf) < 0) { perror("write"); return 1; } usleep(1000); }
		close(fd);
	}
}
