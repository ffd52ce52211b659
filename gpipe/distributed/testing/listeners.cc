#include "gpipe/distributed/testing/listeners.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

namespace gpipe::testing {

std::vector<std::string> children() {
  std::vector<std::string> pids;
  for (const auto& each : std::filesystem::directory_iterator("/proc")) {
    const std::string pid = each.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file("/proc/" + pid + "/stat");
    std::string stat;
    std::getline(file, stat);
    // The state and the parent follow the name, which may contain anything.
    std::istringstream fields(stat.substr(stat.rfind(')') + 1));
    std::string state;
    pid_t parent = 0;
    fields >> state >> parent;
    if (parent == ::getpid()) pids.push_back(pid);
  }
  return pids;
}

std::vector<Listener> listeners_of(const std::string& pid) {
  std::vector<std::string> inodes;
  std::error_code error;
  for (const auto& each :
       std::filesystem::directory_iterator("/proc/" + pid + "/fd", error)) {
    const std::string link =
        std::filesystem::read_symlink(each.path(), error).string();
    if (link.rfind("socket:[", 0) == 0) {
      inodes.push_back(link.substr(8, link.size() - 9));
    }
  }
  std::vector<Listener> listeners;
  for (const std::string table : {"tcp", "tcp6"}) {
    std::ifstream lines("/proc/" + pid + "/net/" + table);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream fields(line);
      std::vector<std::string> field(10);
      for (std::string& each : field) fields >> each;
      const bool listens = field[3] == "0A";
      const bool own =
          std::find(inodes.begin(), inodes.end(), field[9]) != inodes.end();
      if (!listens || !own) continue;
      const std::size_t colon = field[1].find(':');
      listeners.push_back({field[1].substr(0, colon),
                           std::stoi(field[1].substr(colon + 1), nullptr, 16)});
    }
  }
  return listeners;
}

}  // namespace gpipe::testing
