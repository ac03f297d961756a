// shmattach: four workers attach a System V segment for each request, touch it and detach it, shmat(2).
#include <stdio.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <unistd.h>

int main(void) {
	int id = shmget(IPC_PRIVATE, 4 << 20, 0600 | IPC_CREAT);
	if (id < 0) { perror("shmget"); return 1; }
	for (int i = 0; i < 4; i++) if (fork() == 0) for (;;) {
		char *m = shmat(id, NULL, 0);
		if (m == (void *)-1) { usleep(1000); continue; }
		for (int k = 0; k < 8; k++) m[(k * 8 + i) << 12]++;
		shmdt(m);
	}
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
