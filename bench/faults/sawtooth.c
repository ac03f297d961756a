// Healthy: a runtime with a garbage collector grows by 20 MiB a second to 500 MiB and then gives all of it back.
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(void) {
	if (write(1, "ready\n", 6) < 0) return 1;
	for (;;) {
		char *m = mmap(NULL, 500 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (m == MAP_FAILED) return 1;
		for (int i = 0; i < 250; i++) { memset(m + ((size_t)i << 21), 1, 2 << 20); usleep(100000); }
		munmap(m, 500 << 20);
	}
}
