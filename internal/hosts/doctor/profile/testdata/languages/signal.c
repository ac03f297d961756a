// A signal handler that uses the CPU, on the stack of the interrupted function.
#include <signal.h>
#include <sys/time.h>

static volatile unsigned sink;

__attribute__((noinline)) void handle_alarm(int n) {
  for (unsigned i = 0; i < 1 << 20; i++) sink += i * n;
}

__attribute__((noinline)) void cart_total(void) {
  for (unsigned i = 0; i < 1 << 10; i++) sink += i;
}

__attribute__((noinline)) void cart_checkout(void) {
  cart_total();
  sink++;
}

int main(void) {
  struct itimerval often = {{0, 1000}, {0, 1000}};
  signal(SIGALRM, handle_alarm);
  setitimer(ITIMER_REAL, &often, 0);
  for (;;) cart_checkout();
}
