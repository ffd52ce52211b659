// Which ports processes listen on.
#pragma once

#include <string>
#include <vector>

namespace gpipe::testing {

// Returns the running child processes of this process.
std::vector<std::string> children();

struct Listener {
  std::string address;  // hexadecimal, as in /proc/net/tcp
  int port;
};

// Returns the TCP addresses and ports where a process listens; none if the
// process has ended.
std::vector<Listener> listeners_of(const std::string& pid);

}  // namespace gpipe::testing
