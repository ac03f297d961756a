// Healthy: one thread encodes a film, and takes one of the CPUs, which no other program needs.
#include <unistd.h>

int main(void) {
	if (write(1, "ready\n", 6) < 0) return 1;
	for (volatile unsigned long x = 1;; x = x * 6364136223846793005UL + 1);
}
