// Places where a program can be cut: between which nodes each value is alive,
// the reasons against a cut, and the tensors that cross.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "models/exported/program.h"

namespace gpipe::exported {

// The nodes from the one that computes a value to the last one that reads the
// value. A cut before node c separates them if begin < c <= end. `begin` is -1
// for inputs and weights, `end` is -1 if no node reads the value, and the
// number of nodes for an output of the program.
struct Life {
  int begin = -1;
  int end = -1;
};

// The lives of all values of a program. Thread-safe after construction.
class Lives {
 public:
  // Computes the lives, in time linear in the size of `program`, which must be
  // analyzed and must outlive this object.
  explicit Lives(const Program& program);

  const Life& operator[](ValueId value) const { return lives_[value]; }

  // Returns the number of nodes of the program.
  int nodes() const { return nodes_; }

  // Returns whether a value is computed once and passed on. Other values are
  // weights, or are computed again in each layer.
  bool is_passed(ValueId value) const;

  // Returns whether a value is alive over more than a quarter of the nodes that
  // are not pure, and over more than 32 of them.
  bool is_long(ValueId value) const;

  // Returns whether `node` reads the size of a tensor that is passed on, so
  // that any tensor with that size will do.
  bool is_known_size(const Node& node) const;

  // Returns the last node that reads a result of `node`; -1 if none does.
  int last_read(const Node& node) const;

 private:
  const Program& program_;
  const int nodes_;
  std::vector<Life> lives_;
  std::vector<int> computed_;  // nodes before a place that are not pure
};

// A reason against cuts at the places life.begin + 1, ..., life.end. Place k is
// before node k.
struct Obstacle {
  enum class Kind {
    kNumber,  // is computed from tensors, and would cross
    kChange,  // a tensor that would cross is changed in place later
    kSlice,   // a slice of a larger tensor would cross, and has a gradient
    kBuffer,  // a buffer that changes, or the statistics of one norm, would be
              // used on both sides
  };
  Kind kind;
  ValueId value;
  Life life;
};

// Returns all obstacles that are known before the walk over the places.
// `lives`: those of `program`. Takes time n log n in the size of the program.
std::vector<Obstacle> find_obstacles(const Program& program,
                                     const Lives& lives);

// Returns the number of obstacles at each place, one entry for each node.
std::vector<int> count_obstacles(const std::vector<Obstacle>& obstacles,
                                 const Lives& lives);

// Returns the obstacle as text, with the nodes at both ends of its life.
std::string text_of(const Program& program, const Obstacle& obstacle);

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
std::string uncut_reason(const Program& program, int64_t max_crossing);

}  // namespace gpipe::exported
