// Which layers of a model are alike, so that a profile of a part of them is one
// of all.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <string>
#include <vector>

#include "balancing/profile.h"

namespace gpipe::benchmarks {

// A text for each layer, equal for those that do the same on the same shapes:
// what the layer prints of itself, its parameters and skip tensors, and what
// comes in and goes out. The first layer is like no other, since it computes no
// gradient of its input. Takes no memory: `model` and `input` may be on the
// meta device. Errors: those of gpipe::summary().
std::vector<std::string> layer_kinds(const torch::nn::Sequential& model,
                                     const at::Tensor& input);

// Whether each of `kinds` is among `of_others`.
bool covers(const std::vector<std::string>& of_others,
            const std::vector<std::string>& kinds);

// The time of a layer of each of `kinds`: the medians, of forwards and of
// backwards, of those of `times` that are of its kind, which `timed` says.
// std::invalid_argument, with the kind, for one that was not timed, and for
// lists of unequal length.
std::vector<balancing::LayerTime> times_by_kind(
    const std::vector<std::string>& kinds,
    const std::vector<std::string>& timed,
    const std::vector<balancing::LayerTime>& times);

}  // namespace gpipe::benchmarks
