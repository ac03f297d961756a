// tracer WORKERS CALLS_PER_SECOND: a debugger stays attached to workers and stops them at each
// system call, ptrace(2), PTRACE_SYSCALL. With 0 calls a second the workers do not pause.
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static void work(long rate) {
	char record[64];
	int source = open("/dev/zero", O_RDONLY);
	ptrace(PTRACE_TRACEME, 0, 0, 0);
	raise(SIGSTOP);
	for (;;) {
		if (read(source, record, sizeof record) < 0) _exit(1);
		if (rate > 0) usleep(1000000 / rate);
	}
}

int main(int argc, char **argv) {
	long workers = argc > 2 ? atol(argv[1]) : 0, rate = argc > 2 ? atol(argv[2]) : 0;
	struct user_regs_struct regs;
	int status;
	if (workers < 1 || workers > 64) { fprintf(stderr, "usage: tracer WORKERS CALLS_PER_SECOND\n"); return 2; }
	for (long i = 0; i < workers; i++) {
		pid_t pid = fork();
		if (pid == 0) work(rate);
		if (pid < 0 || waitpid(pid, &status, 0) < 0 || !WIFSTOPPED(status)) { perror("worker"); return 1; }
		ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
		ptrace(PTRACE_SYSCALL, pid, 0, 0);
	}
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		pid_t pid = waitpid(-1, &status, __WALL);
		if (pid < 0) { perror("waitpid"); return 1; }
		if (!WIFSTOPPED(status)) continue;
		int sig = WSTOPSIG(status);
		if (sig == (SIGTRAP | 0x80)) { ptrace(PTRACE_GETREGS, pid, 0, &regs); sig = 0; }
		ptrace(PTRACE_SYSCALL, pid, 0, sig);
	}
}
