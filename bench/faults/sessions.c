// sessions FILES WORKERS: a directory of FILES small session files. Each request lists all of
// them and looks at the time of each, readdir(3) and stat(2), to find those that are old, as PHP's
// session.gc_probability does if it is 1.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void collect(void) {
	DIR *d = opendir("/data/sessions");
	struct stat s;
	if (!d) _exit(1);
	for (struct dirent *e; (e = readdir(d));) fstatat(dirfd(d), e->d_name, &s, 0);
	closedir(d);
}

int main(int argc, char **argv) {
	long files = argc > 1 ? atol(argv[1]) : 0;
	int workers = argc > 2 ? atoi(argv[2]) : 0;
	if (files < 1 || files > 100000 || workers < 1 || workers > 16) { fprintf(stderr, "usage: sessions FILES WORKERS\n"); return 2; }
	mkdir("/data/sessions", 0700);
	for (long i = 0; i < files; i++) {
		char name[64];
		snprintf(name, sizeof name, "/data/sessions/sess_%08lx", i * 2654435761L & 0xffffffff);
		int fd = open(name, O_WRONLY | O_CREAT, 0600);
		if (fd < 0 || write(fd, "user|i:1;", 9) < 0) { perror(name); return 1; }
		close(fd);
	}
	for (int i = 0; i < workers; i++) if (fork() == 0) for (;;) collect();
	printf("ready\n");
	fflush(stdout);
	pause();
	return 0;
}
