// Compiled without frame pointers. The caller is in a namespace without a name.
#include <algorithm>
#include <cstdlib>
#include <vector>

namespace shop {
namespace {

struct Cart {
  std::vector<int> items = std::vector<int>(1 << 14);

  __attribute__((noinline)) int total() {
    for (int& i : items) i = rand();
    std::sort(items.begin(), items.end());
    return items[0] + 1;
  }

  __attribute__((noinline)) int checkout() { return total() * 2; }
};

}  // namespace
}  // namespace shop

int main() {
  shop::Cart cart;
  for (volatile int sum = 0;;) sum += cart.checkout();
}
