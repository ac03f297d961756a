// queues-left: a telemetry agent which leaves POSIX message queues behind until hardly a byte is left of RLIMIT_MSGQUEUE,
// which the kernel counts for each user, not for each container: another container of the same user cannot create one.
#define _GNU_SOURCE
#include <fcntl.h>
#include <mqueue.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static int number;
static int create(long messages, long size) {
	char name[32];
	struct mq_attr a = {.mq_maxmsg = messages, .mq_msgsize = size};
	snprintf(name, sizeof name, "telemetry-%d", number);
	int q = syscall(SYS_mq_open, name, O_RDWR | O_CREAT | O_EXCL, 0600, &a);
	if (q >= 0) number++;
	return q;
}
int main(void) {
	while (number < 200 && create(10, 8192) >= 0);
	while (number < 200 && create(10, 1024) >= 0);
	if (number == 0) { perror("mq_open"); return 1; }
	fprintf(stderr, "%d queues\n", number);
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
