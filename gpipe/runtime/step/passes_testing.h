// The actions, inputs and remote stages of the tests that run a pass of a step
// action by action, on one thread.
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/runtime/cell/cell.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/runtime/run/executor.h"
#include "gpipe/runtime/step/remote_stages.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/testing/devices.h"

namespace gpipe::testing {

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
