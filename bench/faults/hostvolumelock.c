// hostvolumelock: a backup on the host locks the database file in the volume of a container while it copies it, four seconds
// of each five, and the transactions of the container wait: "database is locked".
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static int find(void) {
	DIR *d = opendir("/proc");
	char n[320], c[64];
	int fd = -1;
	for (struct dirent *e; d && fd < 0 && (e = readdir(d));) {
		if (e->d_name[0] < '1' || e->d_name[0] > '9') continue;
		snprintf(n, sizeof n, "/proc/%s/comm", e->d_name);
		FILE *f = fopen(n, "r");
		if (!f) continue;
		if (fgets(c, sizeof c, f) && strcmp(c, "ledger-db\n") == 0) {
			snprintf(n, sizeof n, "/proc/%s/root/data/ledger.db", e->d_name);
			fd = open(n, O_RDONLY | O_CLOEXEC);
		}
		fclose(f);
	}
	if (d) closedir(d);
	return fd;
}
int main(void) {
	int fd;
	char b[65536];
	while ((fd = find()) < 0) usleep(200000);
	flock(fd, LOCK_EX);
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		flock(fd, LOCK_EX);
		lseek(fd, 0, SEEK_SET);
		while (read(fd, b, sizeof b) > 0);
		sleep(4); // the copy goes to a slow remote store
		flock(fd, LOCK_UN);
		sleep(1);
	}
}
