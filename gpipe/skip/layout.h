// Where skip tensors travel, from what each layer declares: pure data in,
// pure data out. No LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/skip/namespace.h"

namespace gpipe {

// What one layer declares to stash and to pop.
struct LayerSkips {
  std::string layer;  // its name in the model, for messages
  std::vector<SkipKey> stash;
  std::vector<SkipKey> pop;
};

// A skip tensor that is stashed in one partition and popped in a later one.
// It is sent from `from` to `to` directly.
struct SkipRoute {
  SkipKey key;
  int64_t from;
  int64_t to;
};

// Every mismatch of stashes and pops, a line each, in layer order; empty when
// all match. A name must be stashed once, popped once, and popped by a later
// layer than the one that stashes it.
std::vector<std::string> skip_mismatches(const std::vector<LayerSkips>& layers);

// The routes that cross partitions under `balance` (layers per partition;
// the sum is layers.size()), ordered by destination, then by source, then by
// the order of stashing. `layers` must have no mismatches.
std::vector<SkipRoute> skip_routes(const std::vector<LayerSkips>& layers,
                                   const std::vector<int64_t>& balance);

}  // namespace gpipe
