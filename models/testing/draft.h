// Small programs for tests of the analysis and of cuts.
#pragma once

#include <vector>

#include "models/exported/program.h"

namespace gpipe::testing {

// A program of nodes without operators, for tests that do not run it. Each
// tensor has one dimension, the rows. Each node has one result.
class Draft {
 public:
  Draft();

  // Adds a value that has a memory of its own. A parameter or a buffer gets a
  // weight with the value's name, "v0", "v1", and so on.
  exported::ValueId add(exported::Origin origin);

  exported::ValueId input();

  // Adds a node that reads `reads` and changes `writes`, and returns its
  // result.
  exported::ValueId node(std::vector<exported::ValueId> reads,
                         std::vector<exported::ValueId> writes = {});

  // Adds a node that reads the rows of a tensor.
  exported::ValueId size_of(exported::ValueId tensor);

  // Analyzes the program with the output `output`, and expects no problems.
  exported::Program& finish(exported::ValueId output);

  exported::Program program;
  exported::Extent rows;
};

}  // namespace gpipe::testing
