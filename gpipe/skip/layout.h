// The routes of skip tensors between partitions, computed from what each layer
// declares. Pure data, without LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/skip/namespace.h"

namespace gpipe::internal {

// The skip tensors that one layer declares to stash and to pop.
struct LayerSkips {
  std::string layer;  // name in the model, for messages
  std::vector<SkipKey> stash;
  std::vector<SkipKey> pop;
};

// A skip tensor that is stashed in partition `from` and popped in the later
// partition `to`. It is sent from `from` to `to` directly.
struct SkipRoute {
  SkipKey key;
  int64_t from;
  int64_t to;
};

// Returns one line for each mismatch of stashes and pops, in layer order; empty
// if all match. A name must be stashed once and popped once, and the popping
// layer must come after the stashing layer.
std::vector<std::string> skip_mismatches(const std::vector<LayerSkips>& layers);

// Returns the routes that cross partitions under `balance`, ordered by
// destination, then by source, then by the order of stashing. `balance`: layers
// per partition; the sum must be layers.size(). `layers` must have no
// mismatches (see skip_mismatches()).
std::vector<SkipRoute> skip_routes(const std::vector<LayerSkips>& layers,
                                   const std::vector<int64_t>& balance);

}  // namespace gpipe::internal
