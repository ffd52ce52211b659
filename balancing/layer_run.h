// One forward and backward of one layer, with the times of its parts.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/modules/container/any.h>

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "balancing/profile_tracker.h"
#include "gpipe/runtime/cell/grad_sum.h"
#include "gpipe/runtime/cell/graph.h"
#include "gpipe/runtime/cell/value.h"
#include "gpipe/runtime/device/stamp.h"

namespace gpipe::balancing {

// The value between two layers, without a graph.
struct Boundary {
  internal::Value::Kind kind;
  std::vector<internal::Activation> inputs;
};

// Copies the sample, since a layer may change it in place.
Boundary copy_to(const internal::Value& sample, c10::Device device);

// The sums to which gradients of parameters are added, as training adds those
// of micro-batches. Not thread-safe.
class ProfileSums {
 public:
  // `keep`: whether sums stay in memory until the end, as in training.
  // Otherwise only those of one layer do.
  explicit ProfileSums(bool keep) : keep_(keep) {}

  // Makes a sum of zeros for each of `leaves` that has none yet.
  void begin_layer(const std::vector<at::Tensor>& leaves);
  // Adds a gradient of the current layer. `leaf`: its index in the `leaves` of
  // begin_layer().
  void add(std::size_t leaf, at::Tensor grad);

 private:
  struct Place {
    std::size_t index;  // in sums_
    std::vector<int64_t> sizes;
    at::ScalarType type;
  };
  const bool keep_;
  internal::GradSum sums_;
  // A layer may make leaves in its forward, at the addresses of earlier ones.
  std::unordered_map<const c10::TensorImpl*, Place> places_;
  std::vector<std::size_t> place_of_leaf_;  // of the current layer
};

// The stamps of a layer's forward and backward.
struct LayerStamps {
  internal::Stamp forward_start, forward_end, backward_start, backward_end;
  // The start and the end of each addition to ProfileSums.
  std::vector<std::pair<internal::Stamp, internal::Stamp>> sums;
  // With a backward in two parts: when the first one ends.
  internal::Stamp input_end;
  // Whether the layer computes a gradient of an input, and of a parameter.
  bool has_input = false, has_weight = false;

  double forward() const { return forward_end.seconds_since(forward_start); }
  // Returns the seconds of all additions.
  double accumulate() const;
  // Returns the seconds of the backward without the additions.
  double backward() const {
    return backward_end.seconds_since(backward_start) - accumulate();
  }
  // Return the seconds of the two parts, without the additions. A part that
  // has nothing to compute takes 0.
  double backward_input() const;
  double backward_weight() const;
};

// Runs forward and backward of one layer. The backward runs in two parts
// (gpipe/runtime/cell/split_backward.h) if `split`. Replaces `boundary`, the
// layer's input, by the layer's output.
LayerStamps run_layer(torch::nn::AnyModule& layer, Boundary& boundary,
                      ProfileTracker& tracker, ProfileSums& sums,
                      c10::Device device, bool split);

}  // namespace gpipe::balancing
