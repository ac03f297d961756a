/* Makes previews: each leaves a temporary file of 3 MiB that remains, four a second, 1.4 GB at most. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
int main(void) {
	static char b[1 << 20];
	char p[64];
	memset(b, 't', sizeof b);
	mkdir("/data/multipart", 0755);
	for (int n = 0;; n++) {
		if (n < 445) {
			snprintf(p, sizeof p, "/data/multipart/upload-%05d", n);
			int fd = open(p, O_CREAT | O_WRONLY, 0644);
			for (int i = 0; fd >= 0 && i < 3; i++)
				if (write(fd, b, sizeof b) < 0) break;
			if (fd >= 0) close(fd);
		}
		if (n == 8) { puts("ready"); fflush(stdout); }
		usleep(240000);
	}
}
