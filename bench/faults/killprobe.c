// A supervisor of 800 workers asks with kill(2) and signal 0 all the time whether its process group and any process still
// lives. Each call walks the processes of the host under the lock that fork and exit need for writing.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

int main(void) {
	if (setpgid(0, 0)) { /* the first process of a container leads its group already */ }
	for (int i = 0; i < 800; i++) if (fork() == 0) { prctl(PR_SET_PDEATHSIG, SIGKILL); for (;;) pause(); }
	pid_t group = getpgrp();
	if (fork() == 0) { prctl(PR_SET_PDEATHSIG, SIGKILL); for (;;) kill(-group, 0); }
	if (write(1, "ready\n", 6) < 0) return 1;
	for (;;) { kill(-group, 0); getpriority(0, 0); kill(-1, 0); }
}
