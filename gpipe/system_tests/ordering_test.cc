// Tests that every event, wait, record and scope of the runtime is needed:
// without any one of them, a run fails.
//
// Runs on the simulated accelerators only. They detect an access that no wait
// orders, whatever the timing was.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/runtime/device/test_hooks.h"
#include "gpipe/runtime/run/executor.h"
#include "gpipe/schedule.h"
#include "gpipe/schedule/microbatches.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/models.h"
#include "gpipe/testing/process.h"
#include "gpipe/testing/simulated/simulated.h"

namespace gpipe {
namespace {

using testing::difference;
using testing::linear_model;
using testing::skip_model;
using testing::StepState;
using torch::Tensor;

// The sites that were reached, and the one that is left out.
std::mutex mutex;
std::set<std::string> seen;
std::string omitted;

bool leave_out(internal::Ordering ordering, const internal::Site& site) {
  const std::string text = to_string(ordering, site);
  std::lock_guard<std::mutex> lock(mutex);
  seen.insert(text);
  return text == omitted;
}

void omit(const std::string& site) {
  std::lock_guard<std::mutex> lock(mutex);
  omitted = site;
}

// A model with a layer that allocates memory on the current device.
torch::nn::Sequential model_of_current_device() {
  auto model = testing::linear_model();
  torch::nn::Sequential with_layer;
  for (const auto& each : *model) with_layer->push_back(each);
  with_layer->push_back(testing::layer([](Tensor x) {
    const auto here = x.options().device(x.device().type());
    return x + torch::ones({1}, here);
  }));
  return with_layer;
}

struct Workload {
  Workload(std::string name, torch::nn::Sequential (*model)(),
           std::vector<int64_t> input, std::vector<int64_t> balance,
           std::vector<int> devices, int64_t chunks, Checkpoint mode,
           std::string schedule = {}, int64_t stages_per_rank = 1,
           bool offload = false)
      : name(std::move(name)),
        model(model),
        input(std::move(input)),
        balance(std::move(balance)),
        devices(std::move(devices)),
        chunks(chunks),
        mode(mode),
        schedule(std::move(schedule)),
        stages_per_rank(stages_per_rank),
        offload(offload) {}

  std::string name;
  torch::nn::Sequential (*model)();
  std::vector<int64_t> input;
  std::vector<int64_t> balance;
  std::vector<int> devices;  // -1 is the CPU
  int64_t chunks;
  Checkpoint mode;
  // The schedule of train_step(); if empty, forward and backward run.
  std::string schedule;
  int64_t stages_per_rank;
  bool offload;  // whether the schedule offloads all cells
};

Schedule schedule_of(const Workload& workload) {
  const Schedule plain = named_schedule(
      workload.schedule, static_cast<int>(workload.devices.size()),
      static_cast<int>(workload.chunks),
      static_cast<int>(workload.stages_per_rank));
  return workload.offload ? with_offload(plain, [](int, int) { return true; })
                          : plain;
}

std::vector<torch::Device> devices_of(const Workload& workload) {
  std::vector<torch::Device> devices;
  for (const int index : workload.devices) {
    devices.push_back(index < 0 ? torch::Device(torch::kCPU)
                                : torch::Device(torch::kHPU, index));
  }
  return devices;
}

// A scope in which streams of the user are current on all devices.
class OwnStreams {
 public:
  OwnStreams() {
    const c10::impl::VirtualGuardImpl guard(torch::kHPU);
    for (int k = 0; k < 4; ++k) {
      guards_.push_back(std::make_unique<c10::StreamGuard>(
          guard.getNewStream(torch::Device(torch::kHPU, k))));
    }
  }
  ~OwnStreams() {
    while (!guards_.empty()) guards_.pop_back();
  }

 private:
  std::vector<std::unique_ptr<c10::StreamGuard>> guards_;
};

// Returns "" if copies between devices had their own streams at both ends, and
// if the copies of an offload had a stream of their own in each direction.
std::string trace_complaint(const Workload& workload) {
  std::set<std::string> computing;
  // The streams of copies to and from the host, by device. The mini-batch is
  // copied on other streams.
  std::map<std::string, std::set<std::string>> to_host, from_host;
  const auto trace = simulated::take_trace();
  const auto name = [](const c10::Stream& stream) {
    return stream.device().str() + " stream " + std::to_string(stream.id());
  };
  for (const simulated::Given& each : trace) {
    if (each.name.rfind("aten::", 0) == 0) computing.insert(name(each.stream));
    if (each.name == "a copy to the host") {
      to_host[each.stream.device().str()].insert(name(each.stream));
    }
    if (each.name == "a copy from the host") {
      from_host[each.stream.device().str()].insert(name(each.stream));
    }
  }
  for (const simulated::Given& each : trace) {
    if (!each.other) continue;
    for (const auto& stream : {each.stream, *each.other}) {
      if (stream.id() == 0 || computing.count(name(stream))) {
        return "a copy shares " + name(stream) + " with other work";
      }
    }
  }
  if (!workload.offload) return "";
  for (const auto* copies : {&to_host, &from_host}) {
    for (const auto& [device, streams] : *copies) {
      if (std::ranges::any_of(streams, [&](const std::string& stream) {
            return computing.count(stream) == 0;
          })) {
        continue;
      }
      return "copies to or from the host have no stream of their own on " +
             device;
    }
  }
  return "";
}

// Runs forward and backward. Returns the output.
Tensor forward_and_backward(GPipe& pipeline, const Tensor& x, int64_t rows,
                            bool backward_on_other_streams) {
  Tensor output = pipeline->forward(x);
  Tensor result = output.detach().mul(1);
  Tensor loss = output.pow(2).sum() / static_cast<double>(rows);
  output.reset();
  std::optional<OwnStreams> others;
  if (backward_on_other_streams) others.emplace();
  loss.backward();
  loss.reset();
  // LibTorch brings gradients to the streams of the forward, on whichever
  // streams the backward was called.
  others.reset();
  return result;
}

// Runs a training step and returns its results, on the devices and without
// waiting.
StepState train(GPipe& pipeline, const Workload& workload, const Tensor& host,
                bool backward_on_other_streams) {
  pipeline->zero_grad();
  // Pinned memory is read when the stream gets there.
  const Tensor pinned = host.pin_memory();
  Tensor x = pinned.to(pipeline->devices().front(), /*non_blocking=*/true);
  // Makes a new tensor just before its use; it is freed just after.
  x = x.mul(2).div(2).requires_grad_();
  StepState state;
  if (!workload.schedule.empty()) {
    const Tensor target =
        torch::ones({host.size(0)}, torch::kDouble)
            .to(pipeline->devices().back(), /*non_blocking=*/true)
            .mul(1);
    const StepResult result = pipeline->train_step(
        x, target,
        [](const Tensor& output, const Tensor& target) {
          return (output.flatten(1).sum(1) - target).pow(2).mean();
        },
        schedule_of(workload), TrainOptions().outputs(true));
    state.output = result.output() * result.loss;
  } else {
    state.output = forward_and_backward(pipeline, x, host.size(0),
                                        backward_on_other_streams);
  }
  state.grads.push_back(x.grad().mul(1));
  for (const Tensor& parameter : pipeline->parameters()) {
    state.grads.push_back(parameter.grad().mul(1));
  }
  return state;
}

StepState on_cpu(StepState state) {
  state.output = state.output.cpu();
  for (Tensor& grad : state.grads) grad = grad.cpu();
  for (Tensor& buffer : state.buffers) buffer = buffer.cpu();
  return state;
}

GPipe pipeline_on(const Workload& workload,
                  const std::vector<torch::Device>& devices) {
  torch::manual_seed(0);
  return GPipe(workload.model(), GPipeOptions(workload.balance)
                                     .devices(devices)
                                     .chunks(workload.chunks)
                                     .checkpoint(workload.mode)
                                     .stages_per_rank(workload.stages_per_rank)
                                     .deferred_batch_norm(true)
                                     .threads_per_partition(1));
}

// Runs two steps. Returns "" if their bits equal those of the same pipeline on
// the CPU, no access was unordered, and copies had their own streams.
std::string run(const Workload& workload) {
  simulated::set_microbatch(current_microbatch);
  const Tensor host = torch::randn(workload.input, torch::kDouble);
  const auto two_steps = [&](GPipe& pipeline) {
    torch::manual_seed(7);
    std::vector<StepState> states;
    for (const bool other_streams : {false, true}) {
      states.push_back(train(pipeline, workload, host, other_streams));
    }
    for (const Tensor& buffer : pipeline->buffers()) {
      states.back().buffers.push_back(buffer.clone());
    }
    return states;
  };
  GPipe on_the_cpu = pipeline_on(
      workload,
      std::vector<torch::Device>(workload.devices.size(), torch::kCPU));
  const auto expected = two_steps(on_the_cpu);

  std::string complaint;
  try {
    GPipe pipeline = pipeline_on(workload, devices_of(workload));
    simulated::synchronize();  // until the model is on its devices
    simulated::take_trace();
    const OwnStreams forward_streams;
    const auto states = two_steps(pipeline);
    complaint = trace_complaint(workload);
    for (std::size_t k = 0; k < states.size(); ++k) {
      if (!complaint.empty()) break;
      complaint = difference(on_cpu(states[k]), expected[k]);
    }
    simulated::synchronize();
  } catch (const c10::Error& error) {
    complaint = error.what_without_backtrace();
  }
  const auto races = simulated::take_races();
  if (!races.empty()) complaint = races.front();
  simulated::empty_cache();
  return complaint;
}

torch::nn::Sequential conv_model() { return testing::conv_model(0.4); }

constexpr auto kAlways = Checkpoint::kAlways;
constexpr auto kNever = Checkpoint::kNever;
const std::vector<int64_t> kInput{8, 6}, kSkipInput{8, 4};

const Workload kWorkloads[] = {
    Workload("one device", linear_model, kInput, {6}, {0}, 4, kNever),
    Workload("four devices", linear_model, kInput, {2, 1, 1, 2}, {0, 1, 2, 3},
             4, kNever),
    Workload("four devices, checkpointed", linear_model, kInput, {2, 1, 1, 2},
             {0, 1, 2, 3}, 4, kAlways),
    Workload("four partitions on one device", linear_model, kInput,
             {2, 1, 1, 2}, {1, 1, 1, 1}, 4, kNever),
    Workload("four partitions on one device, checkpointed", linear_model,
             kInput, {2, 1, 1, 2}, {1, 1, 1, 1}, 4, kAlways),
    Workload("skips over four devices", skip_model, kSkipInput, {1, 2, 2, 2},
             {0, 1, 2, 3}, 4, kNever),
    Workload("skips on one device", skip_model, kSkipInput, {1, 2, 2, 2},
             {2, 2, 2, 2}, 4, kAlways),
    Workload("skips to and fro", skip_model, kSkipInput, {1, 2, 2, 2},
             {0, 1, 0, 1}, 4, kNever),
    Workload("one micro-batch", linear_model, kInput, {2, 2, 2}, {0, 1, 2}, 1,
             kNever),
    Workload("one micro-batch on one device", linear_model, kInput, {2, 2, 2},
             {0, 0, 0}, 1, kNever),
    Workload("the current device", model_of_current_device, kInput, {2, 2, 3},
             {3, 0, 2}, 2, kNever),
    Workload("convolutions, BatchNorm and dropout", conv_model, {8, 3, 8, 8},
             {2, 2, 2, 2}, {0, 1, 2, 3}, 3, Checkpoint::kExceptLast),
    Workload("from the CPU and back", linear_model, kInput, {2, 2, 2},
             {-1, 1, -1}, 4, kNever),
    Workload("over the CPU", linear_model, kInput, {2, 2, 2}, {1, -1, 1}, 4,
             kAlways),
    Workload("1F1B over four devices", linear_model, kInput, {2, 1, 1, 2},
             {0, 1, 2, 3}, 4, kNever, "1f1b"),
    Workload("1F1B on one device, checkpointed", linear_model, kInput, {3, 3},
             {1, 1}, 4, kAlways, "1f1b"),
    Workload("zero bubble with skips, two stages per rank", skip_model,
             kSkipInput, {1, 2, 2, 2}, {0, 1}, 4, kNever, "zb-interleaved", 2),
    Workload("interleaved convolutions with dropout", conv_model, {8, 3, 8, 8},
             {2, 2, 2, 2}, {2, 3}, 3, Checkpoint::kExceptLast,
             "interleaved-1f1b", 2),
    Workload("1F1B with offload", linear_model, kInput, {2, 2, 2}, {0, 1, 2}, 4,
             kNever, "1f1b", 1, /*offload=*/true),
    Workload("fill-drain with offload, on one device", linear_model, kInput,
             {6}, {0}, 6, kNever, "fill-drain", 1, /*offload=*/true),
    Workload("zero bubble with skips and offload", skip_model, kSkipInput,
             {1, 2, 2, 2}, {0, 1}, 4, kNever, "zb-interleaved", 2,
             /*offload=*/true)};

TEST(Ordering, NoWorkloadComplains) {
  for (const Workload& each : kWorkloads) EXPECT_EQ(run(each), "") << each.name;
}

// Neither do launches that block, slow events and copies, and waits for whole
// devices.
TEST(Ordering, DelaysChangeNothing) {
  const auto seeds = static_cast<uint64_t>(testing::rounds(40, 200));
  constexpr std::size_t kMostLaunches[] = {1, 3, 64, 0};
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    simulated::set_delays({seed, /*probability=*/0.2, /*seconds=*/300e-6});
    simulated::set_host_costs({kMostLaunches[seed % 4],
                               /*event_seconds=*/(seed / 4 % 2) * 20e-6,
                               /*loads_operators=*/true});
    simulated::set_copy_cost({/*latency=*/(seed / 8 % 2) * 100e-6,
                              /*seconds_per_byte=*/0});
    const Workload& each = kWorkloads[seed % std::size(kWorkloads)];
    ASSERT_EQ(run(each), "") << each.name << ", seed " << seed;
  }
  simulated::set_copy_cost({});
}

// Returns how often the hosts wait in train(): before each action of a rank
// but the first ones, for the end of an earlier one (RunAhead in
// runtime/run/executor.h).
int64_t expected_waits(const Workload& workload) {
  const auto waits = [](int64_t actions) {
    const auto ahead = static_cast<int64_t>(internal::RunAhead::kActions);
    return std::max<int64_t>(actions - ahead, 0);
  };
  const int64_t recomputed =
      checkpointed_microbatches(workload.mode, workload.chunks);
  int64_t sum = 0;
  if (workload.schedule.empty()) {
    const auto ranks = static_cast<int64_t>(workload.devices.size());
    return ranks *
           (waits(workload.chunks) + waits(workload.chunks + recomputed));
  }
  for (const auto& actions : schedule_of(workload).ranks) {
    sum += waits(static_cast<int64_t>(actions.size()) +
                 workload.stages_per_rank * recomputed);
  }
  return sum;
}

// The streams always have work. With offload the host waits for copies to the
// host, too.
TEST(Ordering, TheHostWaitsOnlyForActionsLongBefore) {
  for (const Workload& each : kWorkloads) {
    const auto devices = devices_of(each);
    if (std::ranges::any_of(
            devices, [](const auto& device) { return device.is_cpu(); })) {
      continue;  // a CPU computes on the host, which must wait for its inputs
    }
    if (each.offload) continue;
    GPipe pipeline = pipeline_on(each, devices);
    const Tensor host = torch::randn(each.input, torch::kDouble);
    train(pipeline, each, host, false);
    const int64_t before = simulated::host_waits();
    constexpr int64_t kSteps = 3;
    for (int step = 0; step < kSteps; ++step) {
      train(pipeline, each, host, false);
    }
    EXPECT_EQ(simulated::host_waits() - before, kSteps * expected_waits(each))
        << each.name;
    simulated::synchronize();
  }
}

// A CPU computes with it at once.
TEST(Ordering, ATargetOfADeviceHasReachedACpuWhenTheLossReadsIt) {
  GPipe pipeline(torch::nn::Sequential(torch::nn::Linear(2, 2)),
                 GPipeOptions({1}).devices({torch::kCPU}));
  const Tensor x = torch::ones({4, 2});
  Tensor target = torch::zeros({4, 2}).to(torch::Device(torch::kHPU, 0));
  simulated::busy(target, 0.05);
  target.fill_(3);
  const StepResult result = pipeline->train_step(
      x, target,
      [](const Tensor& output, const Tensor& wanted) {
        return (output - wanted).pow(2).sum();
      },
      fill_drain(1, 2));
  const Tensor expected = (pipeline->forward(x) - 3).pow(2).sum();
  EXPECT_NEAR((result.losses[0] + result.losses[1]).item<double>(),
              expected.item<double>(), 1e-3);
}

TEST(Ordering, NothingCanBeLeftOut) {
  internal::set_leave_out(leave_out);
  for (const Workload& each : kWorkloads) run(each);
  std::set<std::string> sites;
  {
    std::lock_guard<std::mutex> lock(mutex);
    sites = seen;
  }
  EXPECT_GE(sites.size(), 30u);
  std::size_t caught = 0;
  for (const std::string& site : sites) {
    omit(site);
    std::string by;
    for (const Workload& each : kWorkloads) {
      const std::string complaint = run(each);
      if (complaint.empty()) continue;
      by = "\"" + each.name + "\": " + complaint;
      break;
    }
    std::cout << "without the " << site << ": "
              << (by.empty() ? "NOT CAUGHT" : by) << "\n";
    EXPECT_NE(by, "") << site;
    caught += !by.empty();
  }
  omit("");
  internal::set_leave_out(nullptr);
  std::cout << caught << " of " << sites.size() << " caught\n";
}

}  // namespace
}  // namespace gpipe
