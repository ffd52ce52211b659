// Between which nodes of a program each value is alive.
#pragma once

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

}  // namespace gpipe::exported
