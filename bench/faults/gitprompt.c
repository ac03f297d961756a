// gitprompt: the prompts of four open terminals ask for the state of a repository without a pause: lstat(2) of each of its
// 8,000 files, as git status does.
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DIRS = 80, FILES = 100 };
static void name(char *b, int d, int f) { snprintf(b, 96, "/data/repo/src/module-%d/file-%d.go", d, f); }
int main(void) {
	char b[96];
	mkdir("/data/repo", 0700);
	mkdir("/data/repo/src", 0700);
	for (int d = 0; d < DIRS; d++) {
		snprintf(b, sizeof b, "/data/repo/src/module-%d", d);
		mkdir(b, 0700);
		for (int f = 0; f < FILES; f++) { name(b, d, f); int fd = open(b, O_WRONLY | O_CREAT, 0600); if (fd < 0) { perror(b); return 1; } close(fd); }
	}
	for (int i = 0; i < 4; i++) if (fork() == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		prctl(PR_SET_NAME, "git");
		for (;;) for (int d = 0; d < DIRS; d++) for (int f = 0; f < FILES; f++) { struct stat s; name(b, d, f); lstat(b, &s); }
	}
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
