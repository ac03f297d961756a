// With musl, whose functions have no tables. Only system calls use the CPU.
#include <fcntl.h>

__attribute__((noinline)) int cart_total(int file) { return posix_fadvise(file, 0, 4096, POSIX_FADV_DONTNEED) + 1; }

__attribute__((noinline)) int cart_checkout(int file) { return cart_total(file) * 2; }

int main(int argc, char **argv) {
  int file = open(argv[0], O_RDONLY);
  for (volatile int sum = 0;;) sum += cart_checkout(file);
}
