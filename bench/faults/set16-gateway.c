/* A gateway at the debug level: RATE lines a second on stdout. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <stdint.h>
#include <unistd.h>

static int64_t now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000LL + t.tv_nsec / 1000; }

int main(int argc, char **argv) {
	long rate = argc > 1 ? atol(argv[1]) : 25000, n = 0;
	static char out[65536];
	puts("ready"); fflush(stdout);
	int64_t start = now();
	for (;;) {
		long due = (long)((now() - start) * rate / 1000000);
		if (due - n > rate) { start = now(); n = 0; continue; }
		size_t len = 0;
		while (n < due && len < sizeof out - 200)
			len += sprintf(out + len, "DEBUG upstream=10.0.3.%ld request=%08lx method=GET path=/api/v1/items/%ld status=200 bytes=5120 trace=off\n", n % 250, n * 2654435761u % 0xffffffff, n), n++;
		for (size_t at = 0; at < len;) {
			ssize_t w = write(1, out + at, len - at);
			if (w <= 0) return 1;
			at += w;
		}
		usleep(2000);
	}
}
