// hostearlykill: the memory guard of the host, as earlyoom or systemd-oomd, has a wrong threshold and kills a worker
// of the service in a container every 1.5 s, though memory is free.
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(void) {
	int told = 0;
	for (;; usleep(1500000)) {
		int victim = 0;
		DIR *d = opendir("/proc");
		for (struct dirent *e; d && (e = readdir(d));) {
			char name[300], b[32] = "";
			if (e->d_name[0] < '1' || e->d_name[0] > '9') continue;
			snprintf(name, sizeof name, "/proc/%s/comm", e->d_name);
			FILE *f = fopen(name, "r");
			if (!f) continue;
			if (fgets(b, sizeof b, f) && !strcmp(b, "pool-worker11\n")) { int p = atoi(e->d_name); if (!victim || random() % 2) victim = p; }
			fclose(f);
		}
		if (d) closedir(d);
		if (!victim) continue;
		kill(victim, SIGKILL);
		if (!told++) { printf("ready\n"); fflush(stdout); }
	}
}
