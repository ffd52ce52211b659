// The operations in the cells of AmoebaNet-D, as data.
#pragma once

#include <cstddef>
#include <vector>

namespace gpipe::models::amoebanet {

// An operation on a tensor that keeps the number of channels.
enum class Operation {
  kNone,
  kAvgPool3x3,
  kMaxPool3x3,  // an average pool, unless AmoebaNetOptions::true_max_pool
  kMaxPool2x2,
  kConv1x1,
  kConv3x3,
  kConv1x7Then7x1,
};

// An operation and the state that it reads: 0 is the previous cell's output, 1
// the output of the cell before it, 2 the sum of the first pair, and so on.
struct Edge {
  std::size_t state;
  Operation operation;
};

// Two operations whose sum is a new state.
struct Pair {
  Edge first, second;
};

struct Genotype {
  std::vector<Pair> pairs;
  std::vector<std::size_t> concat;  // states that form the output
};

// Returns the normal cell of Real et al., "Regularized evolution for image
// classifier architecture search" (arXiv 1802.01548), appendix D, as in the
// authors' TensorFlow code and in torchgpipe. There the cell's output is states
// 0, 3, 4 and 6; the paper has 4, 5 and 6. The model sizes in the GPipe paper
// (arXiv 1811.06965) are those of the code.
//
// Threads: the functions of this header are pure.
Genotype normal_genotype();

// Returns the reduction cell, which halves height and width and doubles the
// channels.
Genotype reduction_genotype();

}  // namespace gpipe::models::amoebanet
