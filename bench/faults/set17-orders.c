/* An order service: writes ARG lines a second on its standard output. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int main(int c, char **v) {
	int rate = c > 1 ? atoi(v[1]) : 20000;
	struct timespec t = {0, 10000000};
	puts("ready"); fflush(stdout);
	for (long n = 0;;) {
		for (int i = 0; i < rate / 100; i++, n++)
			printf("DEBUG order=%09ld state=pending retry=0 upstream=payments.internal:8443 trace=4f2a%08lx msg=\"connection pool has no free entry, will try again\"\n", n, n * 2654435761ul & 0xffffffff);
		fflush(stdout);
		nanosleep(&t, 0);
	}
}
