// userspin: sixteen threads protect a queue by a spin lock in user space. Its holder is preempted on two CPUs, and the others
// burn their time slices, pthread_spin_lock(3).
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

static pthread_spinlock_t lock;
static void *work(void *p) {
	prctl(PR_SET_NAME, "matcher");
	for (;;) {
		pthread_spin_lock(&lock);
		for (volatile int i = 0; i < 3000; i++);
		pthread_spin_unlock(&lock);
		for (volatile int i = 0; i < 1000; i++);
	}
	return p;
}
int main(void) {
	pthread_spin_init(&lock, PTHREAD_PROCESS_PRIVATE);
	for (int i = 0; i < 16; i++) { pthread_t t; pthread_create(&t, NULL, work, NULL); }
	printf("ready\n");
	fflush(stdout);
	pause();
	return 0;
}
