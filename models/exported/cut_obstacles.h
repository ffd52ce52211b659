// Reasons why a program cannot be cut at a place.
#pragma once

#include <string>
#include <vector>

#include "models/exported/lives.h"
#include "models/exported/program.h"

namespace gpipe::exported {

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

}  // namespace gpipe::exported
