// A record of connections that were refused. No LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

namespace gpipe::internal {

// Counts refused connections by address, and reports some of them: of each
// address the 1st, 10th, 100th, ..., so that a flood does not fill a disk.
//
// Thread-safe.
class Refusals {
 public:
  // `report`: gets one line, on any thread. May be empty.
  explicit Refusals(std::function<void(const std::string&)> report);

  // `peer`: "address:port".
  void add(const std::string& peer, const std::string& why);

  // Returns "" if nothing was refused, or else the number of connections and
  // the last reason.
  std::string summary() const;

 private:
  const std::function<void(const std::string&)> report_;
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> by_address_;
  int64_t count_ = 0;
  std::string last_;
};

}  // namespace gpipe::internal
