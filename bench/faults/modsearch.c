// modsearch: scripts look for their 60 modules in ten directories of the path, always the same names, five times a second.
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
int main(void) {
	char n[96];
	mkdir("/tmp/lib-9", 0700);
	for (int m = 0; m < 60; m++) { snprintf(n, sizeof n, "/tmp/lib-9/module-%d", m); int f = open(n, O_WRONLY | O_CREAT, 0600); if (f >= 0) close(f); }
	printf("ready\n");
	fflush(stdout);
	for (;; usleep(200000)) for (int m = 0; m < 60; m++) for (int d = 0; d < 10; d++) {
		snprintf(n, sizeof n, "/tmp/lib-%d/module-%d", d, m);
		int f = open(n, O_RDONLY);
		if (f >= 0) close(f);
	}
}
