// fullqueue: twelve web processes hand their jobs to one consumer by a System V message queue. The consumer takes five
// a second, so the queue is at its msg_qbytes (kernel.msgmnb) and all senders hang in msgsnd(2).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <unistd.h>

struct m { long type; char text[1000]; };
int main(void) {
	struct m m = {1, {0}};
	int q = msgget(IPC_PRIVATE, 0600 | IPC_CREAT);
	if (q < 0) { perror("msgget"); return 1; }
	memset(m.text, 'j', sizeof m.text);
	while (msgsnd(q, &m, sizeof m.text, IPC_NOWAIT) == 0);
	for (int i = 0; i < 12; i++) if (fork() == 0) { while (msgsnd(q, &m, sizeof m.text, 0) == 0); _exit(1); }
	printf("ready\n");
	fflush(stdout);
	for (;; usleep(200000)) if (msgrcv(q, &m, sizeof m.text, 0, IPC_NOWAIT) < 0) usleep(1000);
}
