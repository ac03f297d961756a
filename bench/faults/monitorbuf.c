// monitorbuf: a cache server with a forgotten MONITOR client that reads 40 KB a second; the output buffer of the client
// grows by 3.2 MiB a second in the heap of the server, which ends at 225 MiB so that it is not killed.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct piece { struct piece *next; char b[16384 - sizeof(void *)]; };
static int s[2];
static void *client(void *p) { char b[4096]; for (;;) { if (read(s[1], b, sizeof b) < 0) break; usleep(100000); } return p; }

int main(void) {
	struct piece *head = NULL, **tail = &head;
	long held = 0;
	pthread_t t;
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, s)) { perror("socketpair"); return 1; }
	fcntl(s[0], F_SETFL, O_NONBLOCK);
	char *keys = malloc(24 << 20);
	memset(keys, 1, 24 << 20);
	pthread_create(&t, NULL, client, NULL);
	printf("ready\n");
	fflush(stdout);
	for (;; usleep(100000)) {
		for (int i = 0; i < 21 && held < 200L << 20; i++) {
			struct piece *p = malloc(sizeof *p);
			if (!p) break;
			memset(p->b, 'G', sizeof p->b);
			p->next = NULL;
			*tail = p; tail = &p->next;
			held += sizeof *p;
		}
		while (head && head->next && send(s[0], head->b, sizeof head->b, MSG_DONTWAIT) == (ssize_t)sizeof head->b) {
			struct piece *p = head;
			head = p->next;
			free(p);
			held -= sizeof *p;
		}
	}
}
