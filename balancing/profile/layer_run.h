// Forward and backward of one layer, with the times of their parts.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/nn/modules/container/any.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "balancing/profile/profile_tracker.h"
#include "gpipe/runtime/autograd/gradients.h"
#include "gpipe/runtime/autograd/graph.h"
#include "gpipe/runtime/autograd/split_backward.h"
#include "gpipe/runtime/cell/value.h"
#include "gpipe/runtime/device/stream.h"

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
  // With a backward in two parts: when the first one ends and the second one
  // starts.
  internal::Stamp input_end, weight_start;
  // The start and the end of each addition to ProfileSums.
  std::vector<std::pair<internal::Stamp, internal::Stamp>> sums;
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

// A layer that has run forward, with the graph for its backward.
//
// Threads: all calls on one thread.
class LayerRun {
 public:
  // Runs the forward. Replaces `boundary`, the layer's input, by its output.
  LayerRun(torch::nn::AnyModule& layer, Boundary& boundary,
           ProfileTracker& tracker, c10::Device device);

  // Runs the backward from ones for all outputs, as a whole or in two parts
  // (gpipe/runtime/autograd/split_backward.h). Call either backward(), or
  // backward_input() and then backward_weight(), once. The gradients of
  // parameters go to `sums`.
  void backward(ProfileSums& sums);
  void backward_input();
  void backward_weight(ProfileSums& sums);

  const LayerStamps& stamps() const { return stamps_; }

 private:
  std::vector<at::Tensor> begin_backward();
  internal::LeafSink sink_to(ProfileSums& sums);

  c10::Device device_;
  LayerStamps stamps_;
  std::vector<torch::autograd::Edge> output_edges_, targets_;
  std::vector<at::Tensor> output_shapes_;  // on the meta device
  internal::Leaves leaves_;
  std::optional<internal::SplitBackward> parts_;
};

}  // namespace gpipe::balancing
