// --distributed: a table whose rows are measured by several processes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/harness/outcome.h"
#include "gpipe/distributed/world.h"

namespace gpipe::benchmarks {

// All processes of a job run the same program with the same flags; a row with a
// pipeline takes a partition in each, and a row without one is rank 0's alone,
// while the others wait. Rank 0 prints.
class Ranks {
 public:
  // By --distributed and --timeout: null without the former. Waits for the
  // other ranks. The errors of World::connect; std::invalid_argument for a
  // timeout without sense.
  static std::shared_ptr<Ranks> connect();

  explicit Ranks(std::shared_ptr<World> world);

  int rank() const { return world_->rank(); }
  int size() const { return world_->size(); }
  int local_rank() const { return world_->local_rank(); }
  const std::shared_ptr<World>& world() const { return world_; }

  // All ranks call these, and wait for each other. PeerError.
  void meet();
  std::vector<int64_t> of_first(const std::vector<int64_t>& numbers);
  // A row has failed here. All others fail too, and so will all rows to come: a
  // rank that is out of step cannot come back.
  void fail(const std::string& what);
  // Of all ranks, in their order.
  std::vector<DeviceMemory> gather(const std::vector<DeviceMemory>& own);

 private:
  std::vector<std::string> exchange(const std::string& own);

  std::shared_ptr<World> world_;
  const int tag_;
};

}  // namespace gpipe::benchmarks
