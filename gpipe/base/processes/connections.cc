#include "gpipe/base/processes/connections.h"

#include <sys/socket.h>

#include <filesystem>
#include <string>

namespace gpipe {

int64_t count_connections() {
  int64_t count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.path().filename().string());
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    const bool has_peer =
        ::getpeername(descriptor, reinterpret_cast<sockaddr*>(&address),
                      &length) == 0;
    if (has_peer && address.ss_family != AF_UNIX) ++count;
  }
  return count;
}

}  // namespace gpipe
