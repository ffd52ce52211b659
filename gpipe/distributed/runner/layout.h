// The assignment of the ranks of a world to pipelines and stages.
#pragma once

#include <vector>

namespace gpipe::internal {

// The ranks of a world with `replicas` pipelines of `ranks` ranks each. Replica
// 0 has the first `ranks` ranks of the world, replica 1 the next ones. So
// neighbours in a pipeline have consecutive ranks, which launchers place on one
// machine.
struct RankLayout {
  int ranks = 1, replicas = 1;
  int rank = 0, replica = 0;  // of this process; `rank` is within its pipeline
  std::vector<int> rank_of_stage;  // ranks within a pipeline

  // Return whether this rank has the given stage, the first one, the last one.
  bool has(int stage) const { return rank_of_stage[stage] == rank; }
  bool has_first() const { return has(0); }
  bool has_last() const { return rank_of_stage.back() == rank; }

  // Return ranks of the world: of rank `of_rank` of this pipeline, and of all
  // ranks of this pipeline.
  int world_rank(int of_rank) const { return replica * ranks + of_rank; }
  std::vector<int> pipeline() const {
    std::vector<int> members;
    for (int r = 0; r < ranks; ++r) members.push_back(world_rank(r));
    return members;
  }
  // Returns the ranks of the world that have the same stages, one in each
  // replica.
  std::vector<int> same_stages() const {
    std::vector<int> members;
    for (int d = 0; d < replicas; ++d) members.push_back(d * ranks + rank);
    return members;
  }
};

}  // namespace gpipe::internal
