// The threads of this process.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace gpipe::testing {

// Returns the names of the threads of this process, in no order.
inline std::vector<std::string> thread_names() {
  std::vector<std::string> names;
  for (const auto& thread :
       std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(thread.path() / "comm");
    std::string name;
    // There is no name of a thread that has just ended.
    if (std::getline(file, name)) names.push_back(std::move(name));
  }
  return names;
}

// Returns their number.
inline int count_threads() { return static_cast<int>(thread_names().size()); }

}  // namespace gpipe::testing
