// keys MOST PER_SECOND USER: a login agent leaves a key in the kernel for each session,
// add_key(2). A user may have /proc/sys/kernel/keys/maxkeys, and then a runtime cannot start
// a container for it: "session keyring: disk quota exceeded". The keys go with the process.
#define _GNU_SOURCE
#include <linux/keyctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long most = argc > 1 ? atol(argv[1]) : 0, rate = argc > 2 ? atol(argv[2]) : 0, n = 0;
	if (argc < 4 || most < 1 || rate < 1) { fprintf(stderr, "usage: keys MOST PER_SECOND USER\n"); return 2; }
	if (setgid(atoi(argv[3])) || setuid(atoi(argv[3]))) { perror("setuid"); return 1; }
	printf("ready\n");
	fflush(stdout);
	for (; n < most; n++) {
		char name[32];
		snprintf(name, sizeof name, "session-%ld", n);
		if (syscall(SYS_add_key, "user", name, "token", 5L, KEY_SPEC_PROCESS_KEYRING) < 0) break;
		usleep(1000000 / rate);
	}
	fprintf(stderr, "%ld keys\n", n);
	for (;;) pause();
}
