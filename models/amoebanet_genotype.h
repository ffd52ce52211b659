// What the cells of AmoebaNet-D compute, as data.
#pragma once

#include <cstddef>
#include <vector>

namespace gpipe::models::amoebanet {

// From a tensor of `channels` channels to one of as many.
enum class Operation {
  kNone,
  kAvgPool3x3,
  kMaxPool3x3,  // an average pool, unless AmoebaNetOptions::true_max_pool
  kMaxPool2x2,
  kConv1x1,
  kConv3x3,
  kConv1x7Then7x1,
};

// An operation, and the state that it reads: 0 is the previous cell's output,
// 1 that of the cell before it, 2 is the sum of the first pair, and so on.
struct Edge {
  std::size_t state;
  Operation operation;
};

// Gives one state: the sum of what the two compute.
struct Pair {
  Edge first, second;
};

struct Genotype {
  std::vector<Pair> pairs;
  std::vector<std::size_t> concat;  // states that together are the output
};

// Real et al., "Regularized evolution for image classifier architecture search"
// (arXiv 1802.01548), appendix D, as in the authors' TensorFlow code and in
// torchgpipe: the normal cell there puts out states 0, 3, 4 and 6, where the
// paper has 4, 5 and 6. The model sizes of the GPipe paper (arXiv 1811.06965)
// are those of the code. Threads: these are pure functions.
Genotype normal_genotype();

// Halves height and width and doubles the channels.
Genotype reduction_genotype();

}  // namespace gpipe::models::amoebanet
