// Tests what a step does to accelerators besides computing: the devices, events
// and memory that it uses. Runs on the simulated accelerators only.
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/runtime/run/executor.h"
#include "gpipe/schedule.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/simulated/memory.h"
#include "gpipe/testing/simulated/simulation.h"
#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe {
namespace {

using simulated::hpu;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::mean_square;
using torch::Tensor;

class AcceleratorTest : public simulated::SimulatedTest {};

torch::nn::Sequential linear_layers(int64_t layers) {
  torch::manual_seed(1);
  torch::nn::Sequential model;
  for (int64_t k = 0; k < layers; ++k)
    model->push_back(torch::nn::Linear(4, 4));
  return model;
}

// Returns a pipeline of `partitions` layers on `devices`, one for each.
GPipe pipeline_on(const std::vector<torch::Device>& devices) {
  const auto count = static_cast<int64_t>(devices.size());
  return GPipe(linear_layers(count),
               GPipeOptions(std::vector<int64_t>(count, 1))
                   .devices(devices)
                   .checkpoint(Checkpoint::kNever));
}

std::vector<Tensor> gradients(GPipe& pipeline) {
  std::vector<Tensor> result;
  for (const Tensor& parameter : pipeline->parameters()) {
    result.push_back(parameter.grad().cpu());
  }
  return result;
}

TEST_F(AcceleratorTest, AStepUsesTheDevicesOfItsPartitionsOnly) {
  GPipe pipeline = pipeline_on({hpu(1), hpu(3)});
  const Tensor x = torch::randn({8, 4}).to(hpu(1));
  simulated::synchronize();
  simulated::forget_contexts();
  pipeline->train_step(x, x, mean_square, one_forward_one_backward(2, 4),
                       TrainOptions().timeline(true));
  pipeline->forward(x).sum().backward();
  EXPECT_THAT(simulated::devices_with_context(), ElementsAre(1, 3));
}

TEST_F(AcceleratorTest, OnlyTheFirstStepMakesEvents) {
  GPipe pipeline = pipeline_on({hpu(0), hpu(1), hpu(2)});
  const Tensor x = torch::randn({8, 4}).to(hpu(0));
  const Schedule schedule = one_forward_one_backward(3, 8);
  pipeline->train_step(x, x, mean_square, schedule);
  simulated::synchronize();
  const int64_t first = simulated::events_made();
  for (int step = 0; step < 20; ++step) {
    pipeline->train_step(x, x, mean_square, schedule);
    simulated::synchronize();
  }
  // How many are in use at once depends on the threads. Each action records
  // about four.
  EXPECT_LE(simulated::events_made() - first, 2 * 8 * 3);
}

// LibTorch keeps a workspace of cuBLAS for each stream that has computed.
TEST_F(AcceleratorTest, ManyPipelinesComputeOnTheStreamsOfOne) {
  const Tensor x = torch::randn({8, 4}).to(hpu(0));
  const auto streams_of_pipelines = [&](int count) {
    simulated::synchronize();
    simulated::take_trace();
    for (int k = 0; k < count; ++k) {
      GPipe pipeline = pipeline_on({hpu(0), hpu(0)});
      pipeline->forward(x).sum().backward();
    }
    simulated::synchronize();
    std::set<std::string> streams;
    for (const auto& each : simulated::take_trace()) {
      if (each.name == "aten::addmm") streams.insert(c10::str(each.stream));
    }
    return streams;
  };
  const auto streams = streams_of_pipelines(1);
  EXPECT_THAT(streams, ::testing::SizeIs(2));
  EXPECT_EQ(streams_of_pipelines(40), streams);
}

// The simulator gives a rank one link to the host and one back, and one from
// each other rank.
TEST_F(AcceleratorTest, TheStagesOfARankShareTheStreamsOfTheirCopies) {
  constexpr int kRanks = 2, kStagesPerRank = 3, kStages = 6;
  GPipe pipeline(linear_layers(kStages),
                 GPipeOptions(std::vector<int64_t>(kStages, 1))
                     .devices({hpu(0), hpu(1)})
                     .stages_per_rank(kStagesPerRank)
                     .checkpoint(Checkpoint::kNever));
  const Tensor x = torch::randn({8, 4}).to(hpu(0));
  const Tensor target = torch::randn({8, 4}).to(hpu(1));
  const Schedule schedule = with_offload(interleaved(kRanks, 4, kStagesPerRank),
                                         [](int, int) { return true; });
  pipeline->train_step(x, target, mean_square, schedule);
  simulated::synchronize();
  const int64_t pinned = simulated::pinned_bytes_made();
  simulated::take_trace();
  pipeline->train_step(x, target, mean_square, schedule);
  simulated::synchronize();
  EXPECT_EQ(simulated::pinned_bytes_made(), pinned);
  std::map<std::string, std::set<c10::StreamId>> streams[kRanks];
  for (const simulated::Given& each : simulated::take_trace()) {
    streams[each.stream.device_index()][each.name].insert(each.stream.id());
    if (!each.other) continue;
    streams[each.other->device_index()]["a copy from another device"].insert(
        each.other->id());
  }
  for (auto& by_name : streams) {
    EXPECT_EQ(by_name["a copy to the host"].size(), 1u);
    EXPECT_EQ(by_name["a copy from the host"].size(), 1u);
    EXPECT_EQ(by_name["a copy to another device"].size(), 1u);
    EXPECT_EQ(by_name["a copy from another device"].size(), 1u);
  }
}

TEST_F(AcceleratorTest, APinnedTargetMayBeChangedAfterTheStep) {
  const Tensor x = torch::randn({8, 4}).to(hpu(0));
  const Tensor target = torch::randn({8, 4});
  // So few actions that no host waits for its device.
  const Schedule schedule = one_forward_one_backward(2, 1);
  const auto step = [&](Tensor wanted) {
    GPipe pipeline = pipeline_on({hpu(0), hpu(1)});
    pipeline->train_step(x, wanted, mean_square, schedule);
    wanted.zero_();
    return gradients(pipeline);
  };
  const auto expected = step(target.clone());
  simulated::set_copy_cost({/*latency=*/2e-3, /*seconds_per_byte=*/0});
  const auto found = step(target.pin_memory());
  for (std::size_t k = 0; k < expected.size(); ++k) {
    EXPECT_TRUE(found[k].equal(expected[k])) << "parameter " << k;
  }
}

// LibTorch runs the hook on the only thread on which the backward of the other
// pipeline could run.
TEST_F(AcceleratorTest, AStepFromAHookOfAParameterIsRefused) {
  GPipe pipeline = pipeline_on({hpu(0), hpu(1)});
  GPipe other = pipeline_on({hpu(0), hpu(1)});
  const Tensor x = torch::randn({8, 4}).to(hpu(0));
  const Schedule schedule = one_forward_one_backward(2, 4);
  int calls = 0;
  pipeline->parameters()[0].register_hook([&](Tensor grad) {
    ++calls;
    const c10::AutoGradMode with_graph(true);
    other->train_step(x, x.to(hpu(1)), mean_square, schedule);
    return grad;
  });
  EXPECT_THAT(
      testing::error_of([&] { pipeline->forward(x).sum().backward(); }),
      HasSubstr("a pipeline on accelerators is called within a backward"));
  EXPECT_EQ(calls, 1);
  other->train_step(x, x.to(hpu(1)), mean_square, schedule);
}

// The hook occupies the thread of the device, for which the backward of its own
// pipeline waits.
TEST_F(AcceleratorTest, AForwardFromAHookInABackwardOfItsOwnIsRefused) {
  GPipe pipeline = nullptr;
  int calls = 0;
  const auto layer = testing::layer([&](Tensor x) {
    const Tensor y = x * 2;
    if (y.requires_grad()) {
      y.register_hook([&](Tensor grad) {
        ++calls;
        return pipeline->forward(grad);
      });
    }
    return y;
  });
  pipeline = GPipe(torch::nn::Sequential(layer),
                   GPipeOptions({1}).devices({hpu(0)}).chunks(1).checkpoint(
                       Checkpoint::kNever));
  const Tensor x = torch::ones({2, 4}).to(hpu(0)).requires_grad_();
  EXPECT_THAT(
      testing::error_of([&] { pipeline->forward(x).sum().backward(); }),
      HasSubstr("a pipeline on accelerators is called within a backward"));
  EXPECT_EQ(calls, 1);
  const c10::NoGradGuard no_grad;
  EXPECT_TRUE(pipeline->forward(x).cpu().equal(torch::full({2, 4}, 2.f)));
}

// Launches that block, slow events, and operators whose first use waits for the
// whole device: a step ends, with the same bits.
TEST_F(AcceleratorTest, HostsMayBeHeldUpAnywhere) {
  const std::vector<torch::Device> devices = {hpu(0), hpu(1), hpu(2), hpu(3)};
  const Tensor x = torch::randn({8, 4}).to(hpu(0));
  const auto step = [&](const Schedule& schedule) {
    GPipe pipeline = pipeline_on(devices);
    pipeline->train_step(x, x.to(hpu(3)), mean_square, schedule);
    return gradients(pipeline);
  };
  for (const std::string name : {"fill-drain", "1f1b", "zb-h1"}) {
    const Schedule schedule = with_offload(
        named_schedule(name, 4, 4, 1), [](int, int i) { return i % 2 == 0; });
    simulated::set_host_costs({});
    const auto expected = step(schedule);
    for (const std::size_t most_launches : {1, 2, 7}) {
      simulated::set_host_costs({most_launches, /*event_seconds=*/50e-6,
                                 /*loads_operators=*/true});
      const auto found = step(schedule);
      for (std::size_t k = 0; k < expected.size(); ++k) {
        EXPECT_TRUE(found[k].equal(expected[k]))
            << name << ", " << most_launches << " launches, parameter " << k;
      }
    }
  }
}

// The host of a rank issues at most 2 actions more than its device has done. So
// a device holds what the schedule says and the copies for these actions,
// whatever the number of micro-batches.
TEST_F(AcceleratorTest, SlowStreamsDoNotMakeARankHoldMore) {
  constexpr int64_t kRows = 64, kColumns = 64;
  constexpr int64_t kBytes = kRows * kColumns * 4;  // of any activation
  constexpr int kRanks = 3;
  simulated::set_delays({/*seed=*/3, /*probability=*/1, /*seconds=*/1e-3});
  for (const int microbatches : {8, 64}) {
    torch::nn::Sequential model(torch::nn::Linear(kColumns, kColumns));
    for (int k = 1; k < 2 * kRanks; ++k) model->push_back(torch::nn::Tanh());
    GPipe pipeline(model, GPipeOptions({2, 2, 2})
                              .devices({hpu(0), hpu(1), hpu(2)})
                              .checkpoint(Checkpoint::kNever));
    // The mini-batch lies on the first device and is not counted there.
    const Tensor x = torch::randn({microbatches * kRows, kColumns}).to(hpu(0));
    const Tensor target = torch::zeros({microbatches * kRows, 1});
    for (int r = 0; r < kRanks; ++r) simulated::reset_peak(r);
    pipeline->train_step(x, target, mean_square,
                         one_forward_one_backward(kRanks, microbatches));
    simulated::synchronize();
    for (int r = 0; r < kRanks; ++r) {
      const int64_t peak = simulated::active_peak_bytes(r) -
                           (r == 0 ? microbatches : 0) * kBytes;
      std::cout << microbatches << " micro-batches, rank " << r << ": "
                << peak / kBytes << " activations\n";
      // Each micro-batch in flight keeps the outputs of two layers. Each of the
      // 3 actions at work has at most 3 others: a copy from each side, and the
      // gradient that it makes.
      EXPECT_LE(peak, (2 * (kRanks - r) + 3 * 3) * kBytes)
          << microbatches << " micro-batches, rank " << r;
    }
  }
}

// ---- Tests how often a step uses the devices besides what its layers do:
// launches, copies, events, and waits of the host. Runs on the simulated
// accelerators only.

using simulated::Counts;

constexpr int kMicrobatches = 8;

class StepCounts : public simulated::SimulatedTest {};

// Returns the launches of the layers, the loss and their backward, for all
// micro-batches of a model on one device.
int64_t launches_of_layers(int layers) {
  torch::nn::Sequential model = linear_layers(layers);
  model->to(hpu(0));
  const Tensor x = torch::randn({2, 4}).to(hpu(0));
  const auto launches = [&] {
    const Counts before = simulated::counts();
    mean_square(model->forward(x), x).backward();
    return (simulated::counts() - before).launches;
  };
  launches();  // makes the gradients; later ones are added
  model->zero_grad();
  return kMicrobatches * launches();
}

// Returns the counts of a step, after one step that is not counted.
Counts counts_of_step(const std::string& schedule, int ranks) {
  std::vector<torch::Device> devices;
  for (int k = 0; k < ranks; ++k) devices.push_back(hpu(k));
  GPipe pipeline(linear_layers(4),
                 GPipeOptions(std::vector<int64_t>(ranks, 4 / ranks))
                     .devices(devices)
                     .checkpoint(Checkpoint::kNever));
  const Tensor x = torch::randn({2 * kMicrobatches, 4}).to(devices.front());
  const Tensor target = torch::randn({2 * kMicrobatches, 4}).to(devices.back());
  const Schedule actions =
      named_schedule(schedule, ranks, kMicrobatches, /*stages_per_rank=*/1);
  pipeline->train_step(x, target, mean_square, actions);
  pipeline->zero_grad();
  simulated::synchronize();
  const Counts before = simulated::counts();
  pipeline->train_step(x, target, mean_square, actions);
  return simulated::counts() - before;
}

TEST_F(StepCounts, OfFillDrainAnd1F1B) {
  const int64_t of_layers = launches_of_layers(4);
  for (const int ranks : {2, 4}) {
    for (const std::string schedule : {"fill-drain", "1f1b"}) {
      const Counts found = counts_of_step(schedule, ranks);
      std::cout << schedule << ", " << ranks << " devices: host waits "
                << found.host_waits << ", launches by us "
                << found.launches - of_layers << " of " << found.launches
                << ", event records " << found.event_records
                << ", stream waits " << found.stream_waits << ", copies "
                << found.copies << "\n";
      const int64_t actions = 2 * kMicrobatches, edges = 2 * ranks;
      EXPECT_EQ(found.host_waits,
                ranks * (actions -
                         static_cast<int64_t>(internal::RunAhead::kActions)));
      // An activation and a gradient for each micro-batch and boundary.
      EXPECT_EQ(found.copies, (ranks - 1) * actions);
      // Besides: each loss times its share of the rows, and the sums of the
      // losses and of the gradients of 8 parameters.
      EXPECT_EQ(found.launches - of_layers,
                found.copies + kMicrobatches + (1 + 8) * (kMicrobatches - 1));
      // An action records its output and its end, a copy its end. The worker's
      // streams wait for the caller's before the step, and these for them after
      // it.
      EXPECT_EQ(found.event_records,
                2 * ranks * actions + found.copies + edges);
      EXPECT_EQ(found.stream_waits, 2 * found.copies + edges);
    }
  }
}

}  // namespace
}  // namespace gpipe
