// set12-batch: a nightly report that computes all the time in one thread, at its own CPU limit, in no hurry.
#include <stdio.h>
int main(void) {
	printf("ready\n");
	fflush(stdout);
	for (volatile double x = 1;;) x = x * 1.0000001 + 1e-9;
}
