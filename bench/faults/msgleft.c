// msgleft PERCENT: an application server makes System V message queues for its tasks, msgget(2), and leaves them behind at each
// restart. PERCENT of kernel.msgmni of its IPC namespace exist; soon msgget fails with "no space left on device".
#include <stdio.h>
#include <stdlib.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <unistd.h>
int main(int argc, char **argv) {
	long max = 32000, n = 0;
	FILE *f = fopen("/proc/sys/kernel/msgmni", "r");
	if (f) { if (fscanf(f, "%ld", &max) != 1) max = 32000; fclose(f); }
	long want = max * (argc > 1 ? atol(argv[1]) : 95) / 100;
	if (want > 40000) want = 40000;
	for (; n < want; n++) if (msgget(IPC_PRIVATE, 0600) < 0) { perror("msgget"); break; }
	printf("ready\n");
	fflush(stdout);
	for (;;) { if (n < max && n < want + 20) n += msgget(IPC_PRIVATE, 0600) >= 0; sleep(5); }
}
