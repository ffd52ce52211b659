#include "tools/launch_secret.h"

#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

std::string make_secret() {
  std::array<unsigned char, 32> bytes;
  std::string text;
  const bool is_random = getrandom(bytes.data(), bytes.size(), 0) ==
                         static_cast<ssize_t>(bytes.size());
  for (const unsigned char byte : bytes) {
    for (const int digit : {byte >> 4, byte & 15}) {
      text.push_back("0123456789abcdef"[digit]);
    }
  }
  const int file = memfd_create("gpipe-secret", MFD_CLOEXEC);
  if (!is_random || file < 0 || fchmod(file, S_IRUSR) != 0 ||
      write(file, text.data(), text.size()) !=
          static_cast<ssize_t>(text.size())) {
    throw std::system_error(errno, std::generic_category(),
                            "cannot make a secret (--secret)");
  }
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file);
}
