// Kinds of layers: layers of one kind take the same time, so it is enough to
// profile one of each kind.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <string>
#include <vector>

#include "balancing/profile.h"

namespace gpipe::benchmarks {

// Returns a text for each layer. The texts of two layers are equal if the
// layers do the same on the same shapes. A text contains the layer's printed
// form, its parameters and skip tensors, and the shapes of its inputs and
// outputs. The first layer is a kind of its own, since it computes no gradient
// of its input. Allocates no memory: `model` and `input` may be on the meta
// device.
//
// Throws what gpipe::summary() throws.
std::vector<std::string> layer_kinds(const torch::nn::Sequential& model,
                                     const at::Tensor& input);

// Returns true if each of `kinds` is among `of_others`.
bool covers(const std::vector<std::string>& of_others,
            const std::vector<std::string>& kinds);

// Returns the time of a layer of each of `kinds`: the medians of the forward
// and of the backward times of the timed layers of that kind.
//
// `timed`: the kinds of the layers that were timed.
// `times`: the times of those layers, in the same order.
//
// Throws std::invalid_argument, with the kind, if one of `kinds` was not timed,
// or if `timed` and `times` have different lengths.
std::vector<balancing::LayerTime> times_by_kind(
    const std::vector<std::string>& kinds,
    const std::vector<std::string>& timed,
    const std::vector<balancing::LayerTime>& times);

}  // namespace gpipe::benchmarks
