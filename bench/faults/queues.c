// queues MOST PER_SECOND: a service makes a POSIX message queue for each client and does not
// remove it, mq_overview(7): /proc/sys/fs/mqueue/queues_max of its namespace is 256.
#define _GNU_SOURCE
#include <fcntl.h>
#include <mqueue.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long most = argc > 1 ? atol(argv[1]) : 0, rate = argc > 2 ? atol(argv[2]) : 0, n = 0;
	struct mq_attr a = {.mq_maxmsg = 4, .mq_msgsize = 128};
	if (most < 1 || most > 1000 || rate < 1) { fprintf(stderr, "usage: queues MOST PER_SECOND\n"); return 2; }
	printf("ready\n");
	fflush(stdout);
	for (; n < most; n++) {
		char name[32];
		snprintf(name, sizeof name, "/client-%ld", n);
		mqd_t q = mq_open(name, O_RDWR | O_CREAT, 0600, &a);
		if (q == (mqd_t)-1) break;
		mq_close(q); // the queue stays
		usleep(1000000 / rate);
	}
	fprintf(stderr, "%ld queues\n", n);
	for (;;) pause();
}
