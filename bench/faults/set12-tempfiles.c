// set12-tempfiles: a converter that never removes its temporary files: 25 MiB a second, at most 2.5 GiB.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static char buf[1 << 20];
int main(void) {
	memset(buf, 5, sizeof buf);
	printf("ready\n");
	fflush(stdout);
	for (unsigned n = 0;; n++) {
		if (n < 512) {
			char name[64];
			snprintf(name, sizeof name, "/data/convert-%u.tmp", n);
			int fd = open(name, O_WRONLY | O_CREAT, 0600);
			for (int i = 0; fd >= 0 && i < 5; i++) if (write(fd, buf, sizeof buf) < 0) break;
			if (fd >= 0) close(fd);
		}
		usleep(195000);
	}
}
