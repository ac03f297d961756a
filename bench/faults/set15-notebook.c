// notebook MAX: a script of a user starts itself again and again until the limit of processes (or MAX of them) is reached, and goes on trying.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv) {
	int max = argc > 1 ? atoi(argv[1]) : 100;
	volatile int *n = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	signal(SIGCHLD, SIG_IGN);
	__atomic_store_n(n, 1, __ATOMIC_SEQ_CST);
	int first = getpid(), said = 0;
	time_t begin = time(NULL);
	for (unsigned k = 0;; k++) {
		int old = __atomic_fetch_add(n, 1, __ATOMIC_SEQ_CST);
		pid_t p = -1;
		if (old < max) p = fork();
		if (p < 0) __atomic_fetch_sub(n, 1, __ATOMIC_SEQ_CST);
		if (p == 0) k = getpid();
		if (getpid() == first && !said && time(NULL) >= begin + 3) { printf("ready\n"); fflush(stdout); said = 1; }
		if (getpid() != first && kill(first, 0) && errno == ESRCH) _exit(0);
		for (volatile int i = 0; i < 100000; i++);
		usleep(20000);
		if (getpid() != first && k % 97 == 96) { __atomic_fetch_sub(n, 1, __ATOMIC_SEQ_CST); _exit(0); }
	}
}
