// The processes that measure a table together (--distributed).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/harness/outcome.h"
#include "gpipe/distributed/world.h"

namespace gpipe::benchmarks {

// The ranks of a job. All processes run the same program with the same flags. A
// row with a pipeline has one partition in each process. A row without a
// pipeline runs on rank 0 alone, while the other ranks wait. Rank 0 prints the
// table.
//
// Not thread-safe.
class Ranks {
 public:
  // Connects to the other ranks and returns the job, or returns null without
  // --distributed. Blocks until all ranks are there; --timeout limits the
  // waits.
  //
  // Throws std::invalid_argument if --timeout is not above 0, and what
  // World::connect() throws.
  static std::shared_ptr<Ranks> connect();

  explicit Ranks(std::shared_ptr<World> world);

  int rank() const { return world_->rank(); }
  int size() const { return world_->size(); }
  int local_rank() const { return world_->local_rank(); }
  const std::shared_ptr<World>& world() const { return world_; }

  // All ranks must call the following functions, except fail(), in the same
  // order. Each call blocks until all ranks have called, and throws PeerError
  // if another rank has failed.

  // Blocks until all ranks have called.
  void meet();

  // Returns the numbers that rank 0 passed.
  std::vector<int64_t> of_first(const std::vector<int64_t>& numbers);

  // Reports that a row has failed on this rank. The row fails on all other
  // ranks, too, and so do all later rows, since the ranks are no longer at the
  // same row.
  void fail(const std::string& what);

  // Returns the entries of all ranks, in the order of the ranks.
  std::vector<DeviceMemory> gather(const std::vector<DeviceMemory>& own);

 private:
  // Returns the texts of all ranks, in the order of the ranks.
  std::vector<std::string> exchange(const std::string& own);

  std::shared_ptr<World> world_;
};

}  // namespace gpipe::benchmarks
