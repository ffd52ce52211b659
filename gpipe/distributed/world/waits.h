// Which rank waits for which, as far as this rank knows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace gpipe::internal {

// For each rank, the rank that it waits for. Ranks exchange what they know with
// their heartbeats, and the newest statement of a rank about itself counts.
// Thread-safe.
class Waits {
 public:
  Waits(int rank, int size) : rank_(rank), known_(size) {}

  // Declares that this rank can do nothing before `rank` has done something;
  // -1: that it waits for no rank. Returns the previous one.
  int set_own(int rank);
  // Sets it to `to` only if the current value is `from`.
  void set_own(int from, int to);

  // Returns at most `bytes` bytes with what this rank knows. If that is not
  // enough for all ranks, the next call goes on where this one has ended.
  std::string encode(std::size_t bytes);
  // Takes over what is newer in a result of encode(). Ignores what is not
  // possible.
  void merge(const std::string& bytes);

  // Follows the chain of ranks that wait for each other, from `rank` on.
  // Returns its last rank, which waits for none; `rank` if they wait in a
  // circle. The result is a guess, because it rests on the last heartbeats.
  int end_of_chain(int rank) const;

 private:
  struct Known {
    int64_t version = 0;  // 0: nothing is known
    int32_t waits_for = -1;
  };

  const int rank_;
  mutable std::mutex mutex_;
  std::vector<Known> known_;  // by rank
  std::size_t next_ = 0;      // the rank with which encode() begins
};

}  // namespace gpipe::internal
