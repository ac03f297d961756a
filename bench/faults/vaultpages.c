// vaultpages: a secrets library gives each key pages of its own: mmap(2), two guard pages, mlock(2), and back again after each
// use, in four threads.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

static void *sign(void *p) {
	prctl(PR_SET_NAME, "vault-sign");
	for (;;) {
		char *m = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (m == MAP_FAILED) { usleep(1000); continue; }
		mprotect(m, 4096, PROT_NONE);
		mprotect(m + 12288, 4096, PROT_NONE);
		mlock(m + 4096, 8192);
		memset(m + 4096, 0x5a, 8192);
		for (volatile int i = 0; i < 300; i++);
		memset(m + 4096, 0, 8192);
		munlock(m + 4096, 8192);
		munmap(m, 16384);
	}
	return p;
}
int main(void) {
	for (int i = 0; i < 4; i++) { pthread_t t; pthread_create(&t, NULL, sign, NULL); }
	printf("ready\n");
	fflush(stdout);
	pause();
	return 0;
}
