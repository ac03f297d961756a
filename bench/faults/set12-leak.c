// set12-leak: a service that caches each request and never evicts: 10 MiB a second up to 900 MiB.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(void) {
	size_t total = 0;
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		if (total < 900ul << 20) { char *m = malloc(1 << 20); if (m) memset(m, (int)total | 1, 1 << 20), total += 1 << 20; }
		usleep(100000);
	}
}
