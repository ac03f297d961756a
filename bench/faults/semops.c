// semops: twelve processes of an application server protect a shared counter by System V semaphores, semop(2), with SEM_UNDO
// and two semaphores at once, for which the kernel locks the whole set.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ipc.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <unistd.h>

int main(void) {
	enum { SEMS = 8, PROCS = 12 };
	int id = semget(IPC_PRIVATE, SEMS, 0600);
	if (id < 0) { perror("semget"); return 1; }
	for (int i = 0; i < SEMS; i++) if (semctl(id, i, SETVAL, 1)) { perror("semctl"); return 1; }
	for (int k = 0; k < PROCS; k++) if (fork() == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		prctl(PR_SET_NAME, "app-worker");
		for (unsigned n = k;; n++) {
			unsigned short a = n % SEMS, b = (n * 5 + 3) % SEMS;
			if (a == b) b = (b + 1) % SEMS;
			struct sembuf in[2] = {{a, -1, SEM_UNDO}, {b, -1, SEM_UNDO}}, out[2] = {{a, 1, SEM_UNDO}, {b, 1, SEM_UNDO}};
			if (semop(id, in, 2)) _exit(1);
			for (volatile int i = 0; i < 100; i++);
			if (semop(id, out, 2)) _exit(1);
		}
	}
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
