// Several processes that write files together.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace gpipe {

// The place of this process among those that save and load together.
struct RunShard {
  int index = 0;  // the rank among all processes, not that on the machine
  int count = 1;

  // Exchanges a text with all processes, which call this at the same time, and
  // returns the texts of all, by index. gpipe's ranks can use
  // gpipe::all_gather() (gpipe/distributed/gather.h).
  std::function<std::vector<std::string>(const std::string& mine)> all_gather;
};

namespace internal {

// Runs body() on each process and returns the results of all, by index. With
// one process, returns or throws what body() does. With several, if it throws
// on any process, throws c10::Error on all, which names the first of these.
// Throws c10::ValueError on all if an index is not the place of its text in the
// result of all_gather.
std::vector<std::string> together(const RunShard& shard,
                                  const std::function<std::string()>& body);

// Creates `folder` on the first process, and finds out whether all processes,
// which all call this, have the same one: the first creates a file in it for
// that time. Throws c10::ValueError on all if one of them does not see the
// file, c10::Error if the folder cannot be created.
void share_folder(const std::string& folder, const RunShard& shard);

}  // namespace internal
}  // namespace gpipe
