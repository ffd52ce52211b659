// Small stages and a way to run them on one thread, for the tests of this
// folder.
#pragma once

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cstddef>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/runtime/cell/partition.h"
#include "gpipe/runtime/run/executor.h"
#include "gpipe/runtime/step/step.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/testing/devices.h"

namespace gpipe::testing {

// A layer that multiplies by a number, its parameter.
struct ScaleImpl : torch::nn::Module {
  explicit ScaleImpl(double factor)
      : weight(register_parameter("weight", torch::full({1}, factor))) {}
  torch::Tensor forward(const torch::Tensor& x) { return x * weight; }
  torch::Tensor weight;
};
TORCH_MODULE(Scale);

// Returns one layer per module, with the names "0", "1", ... An empty module is
// a layer of another process.
inline std::vector<internal::Layer> layers_of(
    std::vector<torch::nn::AnyModule> modules) {
  std::vector<internal::Layer> layers(modules.size());
  for (std::size_t k = 0; k < layers.size(); ++k) {
    layers[k].module = std::move(modules[k]);
    layers[k].name = layers[k].skips.layer = std::to_string(k);
    layers[k].index = static_cast<int64_t>(k);
  }
  return layers;
}

// Returns stages of one layer and one rank each, on devices(n).
inline internal::Stages stages_of(std::vector<internal::Layer> layers) {
  const auto on = devices(layers.size());
  for (std::size_t k = 0; k < layers.size(); ++k) {
    if (!layers[k].module.is_empty()) layers[k].module.ptr()->to(on[k]);
  }
  const std::vector<int64_t> balance(layers.size(), 1);
  std::vector<int> ranks(layers.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return internal::Stages(internal::partition(std::move(layers), balance, on),
                          std::move(ranks));
}
inline internal::Stages stages_of(std::vector<torch::nn::AnyModule> modules) {
  return stages_of(layers_of(std::move(modules)));
}

// Performs all actions of `schedule` on this thread.
inline void perform(const Schedule& schedule, internal::Actor& actor) {
  std::vector<std::size_t> next(schedule.ranks.size());
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t r = 0; r < next.size(); ++r) {
      const auto& actions = schedule.ranks[r];
      while (next[r] < actions.size() && actor.ready(actions[next[r]])) {
        actor.fetch(actions[next[r]], nullptr);
        actor.perform(actions[next[r]++]);
        progress = true;
      }
    }
  }
  for (std::size_t r = 0; r < next.size(); ++r) {
    EXPECT_EQ(next[r], schedule.ranks[r].size()) << "rank " << r << " is stuck";
  }
}

}  // namespace gpipe::testing
