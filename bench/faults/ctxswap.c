// ctxswap THREADS: a service runs its requests as coroutines on swapcontext(3), which saves the signal mask with a system call at
// each switch, rt_sigprocmask(2). Each of THREADS threads switches between two coroutines that do hardly anything.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
#include <unistd.h>
struct pair { ucontext_t a, b; char stack[65536]; };
static void coroutine(unsigned lo, unsigned hi) {
	struct pair *p = (struct pair *)((unsigned long)hi << 32 | lo);
	for (;;) { for (volatile int i = 0; i < 20; i++); swapcontext(&p->b, &p->a); }
}
static void *loop(void *x) {
	struct pair *p = calloc(1, sizeof *p);
	if (!p) return NULL;
	getcontext(&p->b);
	p->b.uc_stack.ss_sp = p->stack;
	p->b.uc_stack.ss_size = sizeof p->stack;
	makecontext(&p->b, (void (*)(void))coroutine, 2, (unsigned)(unsigned long)p, (unsigned)((unsigned long)p >> 32));
	for (;;) swapcontext(&p->a, &p->b);
	return x;
}
int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 3;
	for (int i = 0; i < n; i++) { pthread_t t; pthread_create(&t, NULL, loop, NULL); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
