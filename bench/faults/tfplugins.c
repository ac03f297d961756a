// tfplugins: a CI agent copies the provider plugins of 6 MiB into the directory of each run and never removes them,
// one run a second; it ends at 600 MiB.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char buf[1 << 20];
int main(void) {
	char name[96];
	for (size_t i = 0; i < sizeof buf; i++) buf[i] = (char)random();
	printf("ready\n");
	fflush(stdout);
	for (int run = 0; run < 100; run++, usleep(950000)) {
		snprintf(name, sizeof name, "/data/run-%d", run);
		mkdir(name, 0700);
		snprintf(name, sizeof name, "/data/run-%d/terraform-provider-cloud", run);
		int fd = open(name, O_WRONLY | O_CREAT, 0700);
		if (fd < 0) { perror("open"); break; }
		for (int i = 0; i < 6; i++) if (write(fd, buf, sizeof buf) < 0) perror("write");
		close(fd);
	}
	for (;;) pause();
}
