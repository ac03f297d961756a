// sesscache START_MIB KIB_PER_S STOP_MIB: a service keeps each session in a map and never removes one.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct session { struct session *next; char data[16384 - sizeof(void *)]; };
static struct session *all;
static void add(long kib) {
	for (long k = 0; k < kib; k += 16) {
		struct session *s = malloc(sizeof *s);
		if (!s) return;
		memset(s->data, 's', sizeof s->data);
		s->next = all;
		all = s;
	}
}

int main(int argc, char **argv) {
	if (argc < 4) return 2;
	long have = atol(argv[1]) << 10, rate = atol(argv[2]), stop = atol(argv[3]) << 10;
	add(have);
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		if (have < stop) { add(rate / 10); have += rate / 10; }
		usleep(100000);
	}
}
