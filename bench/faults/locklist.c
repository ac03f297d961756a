// Three processes of a file server keep 5000 byte-range locks each on one file. Each new lock walks the
// whole list with a spin lock held (fcntl(2), F_SETLK).
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

static void lock(int fd, short type, off_t at) {
	struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
	if (fcntl(fd, F_SETLK, &l)) { perror("F_SETLK"); exit(1); }
}
static void serve(int id, int done) {
	int fd = open("/data/database", O_RDWR | O_CREAT, 0600);
	if (fd < 0) { perror("open"); exit(1); }
	for (int i = 0; i < 5000; i++) lock(fd, F_WRLCK, 6L * i + 2 * id);
	if (write(done, "x", 1) < 0) exit(1);
	for (int i = 0;; i++) { lock(fd, F_UNLCK, 6L * (i % 5000) + 2 * id); lock(fd, F_WRLCK, 6L * (i % 5000) + 2 * id); }
}
int main(void) {
	int p[2];
	char c;
	if (pipe(p)) return 1;
	for (int id = 0; id < 3; id++) if (fork() == 0) { prctl(PR_SET_PDEATHSIG, SIGKILL); serve(id, p[1]); }
	for (int i = 0; i < 3; i++) if (read(p[0], &c, 1) != 1) return 1;
	if (write(1, "ready\n", 6) < 0) return 1;
	for (;;) pause();
}
