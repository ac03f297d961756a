// fsizelimit: a database under ulimit -f of 200 MiB, whose file has 96 % of it and grows slowly.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static char buf[1 << 20];
int main(void) {
	const long limit = 200L << 20;
	struct rlimit r = {limit, limit};
	signal(SIGXFSZ, SIG_IGN);
	if (setrlimit(RLIMIT_FSIZE, &r)) { perror("setrlimit"); return 1; }
	int fd = open("/data/ledger.ibd", O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0) { perror("open"); return 1; }
	memset(buf, 7, sizeof buf);
	for (int i = 0; i < 192; i++) if (write(fd, buf, sizeof buf) < 0) { perror("write"); return 1; }
	printf("ready\n");
	fflush(stdout);
	for (;; sleep(1)) if (write(fd, buf, 16384) < 0) perror("write");
}
