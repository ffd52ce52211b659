// Which rank of the world does what.
#pragma once

#include <vector>

namespace gpipe {

// `replicas` pipelines of `ranks` ranks each: the first `ranks` ranks of the
// world are replica 0. Messages of neighbours are between neighbours, which a
// launcher puts on one machine.
struct RankLayout {
  int ranks = 1, replicas = 1;
  int rank = 0, replica = 0;       // this one's; rank within its pipeline
  std::vector<int> rank_of_stage;  // within a pipeline

  // Whether this rank has the stage, the first one, the last one.
  bool has(int stage) const { return rank_of_stage[stage] == rank; }
  bool has_first() const { return has(0); }
  bool has_last() const { return rank_of_stage.back() == rank; }

  // In the world.
  int world_rank(int of_rank) const { return replica * ranks + of_rank; }
  std::vector<int> pipeline() const {
    std::vector<int> members;
    for (int r = 0; r < ranks; ++r) members.push_back(world_rank(r));
    return members;
  }
  // Those that hold the same stages.
  std::vector<int> same_stages() const {
    std::vector<int> members;
    for (int d = 0; d < replicas; ++d) members.push_back(d * ranks + rank);
    return members;
  }
};

}  // namespace gpipe
