/* An upload service: unpacks RATE MB a second into files of its own, which it never deletes; at most MAX MB. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long rate = argc > 1 ? atol(argv[1]) : 16, max = argc > 2 ? atol(argv[2]) : 1800, mb = 0;
	static char buf[1 << 20];
	char dir[200], name[300];
	memset(buf, 'u', sizeof buf);
	snprintf(dir, sizeof dir, "%s/context-%d", access("/data", W_OK) ? "/var/tmp" : "/data", getpid());
	mkdir(dir, 0700);
	for (long f = 0;; f++) {
		if (mb < max) {
			snprintf(name, sizeof name, "%s/layer%ld", dir, f);
			int fd = open(name, O_WRONLY | O_CREAT, 0600);
			if (fd < 0) { perror(name); return 1; }
			for (int i = 0; i < 4; i++, mb++) if (write(fd, buf, sizeof buf) < 0) perror("write");
			close(fd);
		}
		if (mb == 48) { puts("ready"); fflush(stdout); }
		if (f % 50 == 49) { printf("%ld contexts prepared\n", f); fflush(stdout); }
		if (mb > 48) usleep(4000000 / rate);
	}
}
