// A service that logs with glog, and a thread that ships its log as it grows.
//
// glog calls posix_fadvise for what it has written. The shipper has a page of each MiB of
// the log mapped, so that the kernel cannot drop it at once: it then drains the batches of
// all CPUs, as it does where the disk is slow.
#include <fcntl.h>
#include <glog/logging.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <thread>

namespace shop {

void ship(const std::string& log) {
  const off_t step = 1 << 20;
  const int mapped = 8;
  void* pages[mapped] = {};
  int fd = -1;
  for (off_t at = 0;; usleep(1000)) {
    struct stat st;
    if (fd < 0) fd = open(log.c_str(), O_RDONLY);
    if (fd < 0 || fstat(fd, &st) != 0) continue;
    for (; at + 4096 <= st.st_size; at += step) {
      void*& page = pages[(at / step) % mapped];
      if (page) munmap(page, 4096);
      page = mmap(nullptr, 4096, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, at);
      if (page == MAP_FAILED) page = nullptr;
      if (at > 0) fdatasync(fd);  // the kernel passes over a page that it is writing to the disk
    }
  }
}

__attribute__((noinline)) void handle_request(int number, const std::string& body) {
  LOG(INFO) << "request " << number << " " << body;
}

}  // namespace shop

int main(int, char** argv) {
  const std::string dir = argv[1];
  FLAGS_log_dir = dir;
  FLAGS_logbufsecs = 0;
  google::InitGoogleLogging("service");
  std::thread(shop::ship, dir + "/service.INFO").detach();
  const std::string body(20000, 'x');
  for (int number = 0; number < 200000; number++) {  // at most 4 GB
    shop::handle_request(number, body);
    if (number % 10 == 0) usleep(1000);  // at most 200 MB/s
  }
}
