// Small stages, and ways to run a pass on them on one thread, for the tests of
// this folder.
#pragma once

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/runtime/cell/cell.h"
#include "gpipe/runtime/cell/partition.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/runtime/run/executor.h"
#include "gpipe/runtime/step/passes.h"
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

inline const auto kNever = [](int64_t, int64_t) { return false; };
inline const auto kAlways = [](int64_t, int64_t) { return true; };

inline Action F(int stage, int microbatch) {
  return {stage, ActionKind::kForward, microbatch};
}
inline Action B(int stage, int microbatch) {
  return {stage, ActionKind::kBackward, microbatch};
}

inline torch::Tensor numbers(double first, double second) {
  return torch::tensor({first, second}, torch::kFloat);
}
inline bool is(const torch::Tensor& tensor, double first, double second) {
  return tensor.cpu().equal(numbers(first, second));
}

// Returns the inputs of micro-batches: (1, 2), (10, 20), ...
inline std::vector<internal::Activations> inputs(int64_t microbatches) {
  std::vector<internal::Activations> all(microbatches);
  double factor = 1;
  for (internal::Activations& each : all) {
    each.boundary = {{(numbers(1, 2) * factor).to(device()), true, false}};
    factor *= 10;
  }
  return all;
}

inline void run(internal::Actor& actor, const Action& action) {
  EXPECT_TRUE(actor.ready(action)) << to_string(action);
  actor.fetch(action, nullptr);
  actor.perform(action);
}

// Remote stages that log what is sent and waited for.
class Remote : public internal::RemoteStages {
 public:
  std::vector<internal::StageOutput> sent;
  std::vector<int64_t> waited;
  int checks = 0;

  void send(std::vector<internal::StageOutput> all,
            const internal::Event& made) override {
    for (internal::StageOutput& each : all) {
      for (internal::Activation& activation : each.content) {
        if (!activation.tensor.defined()) continue;
        made.wait(activation.tensor.device());
      }
      sent.push_back(std::move(each));
    }
  }
  void waits_for(int64_t stage) override { waited.push_back(stage); }
  void check() override { ++checks; }
};

inline std::vector<std::string> edges_of(
    const std::vector<internal::StageOutput>& sent) {
  std::vector<std::string> edges;
  for (const internal::StageOutput& each : sent) {
    edges.push_back(std::to_string(each.edge.from) + ">" +
                    std::to_string(each.edge.to) + " link " +
                    std::to_string(each.edge.link) + " of " +
                    std::to_string(each.edge.microbatch) +
                    (each.edge.backward ? " back" : ""));
  }
  return edges;
}

}  // namespace gpipe::testing
