// The starts of a world that meet at one store.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace gpipe::internal {

// Tells the starts of a world apart in a store that outlives them, as that of
// torchrun's agent does. Each start has another number, which its rank 0 draws.
// The other ranks ask for it with a random token, so that what ranks of earlier
// starts have written means nothing to them. A start may have another number of
// ranks than the one before. Not thread-safe.
class Starts {
 public:
  // `store`: must have append(). `rank`: this rank.
  Starts(c10::intrusive_ptr<c10d::Store> store, int rank);

  // Returns the number of this start, the same in each call. On rank 0 it is
  // new; other ranks block until rank 0 has answered. Returns nullopt if
  // `deadline` has passed.
  std::optional<int64_t> number(std::chrono::steady_clock::time_point deadline);

  // On rank 0: answers the ranks that have asked by now. Call it repeatedly
  // until all ranks are there. Does nothing on other ranks.
  void answer();

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  std::optional<int64_t> number_;
  std::size_t answered_ = 0;  // bytes of the questions
};

}  // namespace gpipe::internal
