// Compiled without frame pointers, total spends its time in qsort of libc.
#include <stdlib.h>

static int items[1 << 14];

static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

__attribute__((noinline)) int cart_total(void) {
  for (int i = 0; i < 1 << 14; i++) items[i] = rand();
  qsort(items, 1 << 14, sizeof *items, compare);
  return items[0] + 1;
}

__attribute__((noinline)) int cart_checkout(void) { return cart_total() * 2; }

int main(void) {
  for (volatile int sum = 0;;) sum += cart_checkout();
}
