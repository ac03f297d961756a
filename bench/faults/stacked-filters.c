// stacked-filters FILTERS THREADS: a sandbox which restarts its program in place and adds a seccomp(2) filter each time; none
// is ever removed. After FILTERS restarts each system call runs tens of thousands of instructions of filters.
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *guest(void *x) {
	for (;;) { syscall(SYS_getppid); for (volatile int i = 0; i < 1000; i++); }
	return x;
}
int main(int argc, char **argv) {
	struct sock_filter f[98];
	struct sock_fprog p = {98, f};
	int n = 0;
	if (argc < 3) return 2;
	f[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 16); // the first argument: the result cannot be cached
	for (int i = 1; i < 97; i++) f[i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x70000000 + i, 0, 0);
	f[97] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	while (n < atoi(argv[1]) && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p) == 0) n++;
	fprintf(stderr, "%d filters\n", n);
	if (n == 0) { perror("seccomp"); return 1; }
	for (int i = 0; i < atoi(argv[2]); i++) { pthread_t t; pthread_create(&t, NULL, guest, NULL); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
