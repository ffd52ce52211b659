// Places where a program can be cut, and the tensors that cross there.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "models/exported/lives.h"
#include "models/exported/program.h"

namespace gpipe::exported {

// A walk over the places of a program, from front to back, that keeps the
// tensors that cross at the present place. Not thread-safe.
class CrossingWalk {
 public:
  // Starts before the first place. `program` must be analyzed, `lives` are
  // those of `program`. `program` must outlive this object.
  CrossingWalk(const Program& program, const Lives& lives);

  // Goes to the place before node `place`. Must be called with 0, 1, 2, and so
  // on.
  void enter(int place);

  // Returns whether a cut at the present place is correct, see plan_layers().
  bool may_cut() const;

  // Returns the tensors that cross at the present place, without skip tensors.
  const std::set<ValueId>& crossing() const { return crossing_; }

 private:
  const Program& program_;
  const std::vector<int> obstacles_;
  std::vector<std::vector<ValueId>> begins_, ends_;  // of crossings, by place
  int place_ = 0;
  std::set<ValueId> crossing_;
};

// A cut before node `place`, and the tensors that cross.
struct Cut {
  int place;
  std::vector<ValueId> crossing;
};

// Returns all correct cuts of `program` where at most `max_crossing` tensors
// cross, in order. Between two cuts there is a node that is not pure. Takes
// time n log n in the number of nodes.
std::vector<Cut> find_cuts(const Program& program, const Lives& lives,
                           int64_t max_crossing);

// Returns why `program` has no cut where at most `max_crossing` tensors cross:
// how many cross, or else the obstacle that is in the way at most places, and
// its nodes. "" if there is such a cut.
std::string uncut_reason(const Program& program, const Lives& lives,
                         int64_t max_crossing);

}  // namespace gpipe::exported
