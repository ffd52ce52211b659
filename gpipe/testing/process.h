// What a test asks of its process: the number of rounds, and the threads. No
// LibTorch.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpipe::testing {

// ---- The number of rounds of a randomised test or a sweep.

// Returns whether the environment variable GPIPE_THOROUGH is 1, as in
// `tools/check.sh thorough`. It is not in `bazel test //...`.
inline bool is_thorough() {
  const char* const value = std::getenv("GPIPE_THOROUGH");
  return value != nullptr && std::string_view(value) == "1";
}

// Returns `thorough` if is_thorough(), else `quick`.
//
// Rounds come in the same order with the same seeds, so that the quick run is a
// part of the thorough one.
inline int64_t rounds(int64_t quick, int64_t thorough) {
  return is_thorough() ? thorough : quick;
}

// ---- The threads of this process.

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
