// A miner in a sandbox runs twelve threads that only compute, without a quota.
#include <pthread.h>
#include <unistd.h>

static void *mine(void *none) { for (volatile unsigned long x = 1;; x = x * 6364136223846793005UL + 1); return none; }
int main(void) {
	pthread_t t;
	for (int i = 0; i < 11; i++) if (pthread_create(&t, NULL, mine, NULL)) return 1;
	if (write(1, "ready\n", 6) < 0) return 1;
	mine(NULL);
	return 0;
}
