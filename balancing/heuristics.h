// What published heuristics made of lists of costs, as numbers on record
// (data/README.md), to be held against the exact cuts of partition.h. None of
// their code is here. No LibTorch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::balancing {

constexpr std::array<const char*, 3> kHeuristics = {
    "torchgpipe 0.0.7", "DeepSpeed 0.9.5", "DeepSpeed 0.19.8"};

// In the place of a largest block.
constexpr int64_t kDidNotEnd = -1;
constexpr int64_t kEmptyBlock = -2;  // it cut, but a block has no layer

struct RecordedCase {
  // Where the costs are from: a model ("U-Net") or a kind of random list
  // ("random, heavy").
  std::string set;
  // Of each layer, whole numbers; of a model, microseconds of forward and
  // backward.
  std::vector<double> costs;
  int64_t partitions;
  // By each of kHeuristics: the cost of the largest block, or a code of above.
  std::array<int64_t, kHeuristics.size()> bottlenecks;
};

// ResNet-101, AmoebaNet-D (18, 256) and U-Net (5, 64), each into 2, 4 and 8.
std::vector<RecordedCase> recorded_profiles();

// 10,000 lists of 8 to 64 costs into 2 to 8. The lists are made here, by the
// same few lines as when the heuristics were run; checksum() tells.
std::vector<RecordedCase> recorded_random();

// 64-bit FNV-1a, a whole number at a time, over the number of layers, the
// partitions and the costs of each case.
uint64_t checksum(const std::vector<RecordedCase>& cases);

// Of the lists that the heuristics were given.
extern const uint64_t kRandomChecksum;

}  // namespace gpipe::balancing
