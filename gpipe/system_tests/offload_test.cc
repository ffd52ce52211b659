// Tests training steps whose schedule copies to the host what cells keep for
// their backward, and back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cctype>
#include <cstddef>
#include <functional>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/checkpoint.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/models.h"
#include "gpipe/testing/process.h"

namespace gpipe {
namespace {

using testing::cut;
using testing::device;
using testing::devices;
using testing::difference;
using testing::error_of;
using ::testing::HasSubstr;
using testing::layer;
using testing::mean_square;
using testing::StepState;
using testing::Subject;
using testing::subjects;
using torch::Tensor;
namespace nn = torch::nn;

bool everything(int, int) { return true; }

Tensor randn(int64_t rows, const std::vector<int64_t>& sizes) {
  return torch::randn(testing::with_rows(rows, sizes), torch::kDouble);
}

// A schedule with the options of its pipeline.
struct Offloading {
  Schedule schedule;
  int stages_per_rank = 1;
  Checkpoint mode = Checkpoint::kNever;
  // Whether all ranks have one device and the pipeline is made for kLoop.
  bool on_one_device = false;
};

// Returns the results of two steps: two, since buffers are used again.
StepState state_after(const Offloading& setting, const Subject& model,
                      bool timeline = false) {
  torch::manual_seed(1);
  nn::Sequential layers = model.make();
  auto ranks = devices(setting.schedule.ranks.size());
  if (setting.on_one_device) ranks.assign(ranks.size(), ranks.front());
  GPipe pipeline(layers,
                 GPipeOptions(cut(layers->size(), num_stages(setting.schedule)))
                     .stages_per_rank(setting.stages_per_rank)
                     .placement(setting.on_one_device
                                    ? Placement::kLoop
                                    : testing::placement_of(setting.schedule))
                     .devices(ranks)
                     .checkpoint(setting.mode)
                     .threads_per_partition(1));
  StepState state;
  for (int step = 0; step < 2; ++step) {
    // The last micro-batch is smaller.
    const int64_t rows = 2 * num_microbatches(setting.schedule) + step - 1;
    Tensor x = randn(rows, model.input).to(device()).requires_grad_();
    const Tensor target = randn(rows, model.target);
    const StepResult result =
        pipeline->train_step(x, target, mean_square, setting.schedule,
                             TrainOptions().outputs(true).timeline(timeline));
    state = testing::state_after(*pipeline, result.output() * result.loss, x);
  }
  return state;
}

// Calls f(size, setting) for the schedule of that name. `all`: with several
// sizes.
void for_each_size(
    const std::string& name, bool all,
    const std::function<void(const std::string&, Offloading)>& f) {
  for (const int ranks : {1, 2, 3}) {
    for (const int microbatches : {1, 3, 6}) {
      if (!all && (ranks != 2 || microbatches != 6)) continue;
      Offloading setting;
      setting.stages_per_rank = fixed_stages_per_rank(name).value_or(2);
      const auto schedule = testing::schedule_of(name, ranks, microbatches,
                                                 setting.stages_per_rank);
      if (!schedule) continue;
      setting.schedule = *schedule;
      f(std::to_string(ranks) + " ranks, " + std::to_string(microbatches) +
            " micro-batches",
        setting);
    }
  }
}

class Offload : public ::testing::Test {
 protected:
  Offload() { torch::set_num_threads(1); }
};

// Every schedule in every checkpoint mode.
class OffloadOf
    : public ::testing::TestWithParam<std::tuple<std::string, Checkpoint>> {
 protected:
  OffloadOf() { torch::set_num_threads(1); }
};

// The models take turns, so that each schedule has each model in some mode.
TEST_P(OffloadOf, HasTheBitsOfTheStepWithoutIt) {
  const auto& [name, mode] = GetParam();
  auto model = subjects().begin();
  std::advance(model, (name.size() + static_cast<std::size_t>(mode)) %
                          subjects().size());
  int turn = 0;
  for_each_size(
      name, device().is_cpu() || testing::is_thorough(),
      [&](const std::string& size, Offloading setting) {
        setting.mode = std::get<1>(GetParam());
        const StepState without = state_after(setting, model->second);
        Offloading with = setting;
        with.schedule = with_offload(setting.schedule, everything, turn++ % 4);
        EXPECT_EQ(difference(state_after(with, model->second), without), "")
            << size << ", " << model->first;
      });
}

std::string name_of_case(
    const ::testing::TestParamInfo<OffloadOf::ParamType>& info) {
  std::string name =
      std::get<0>(info.param) + "_" + to_string(std::get<1>(info.param));
  for (char& each : name) {
    if (std::isalnum(static_cast<unsigned char>(each)) == 0) each = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    All, OffloadOf,
    ::testing::Combine(::testing::ValuesIn(training_schedule_names()),
                       ::testing::ValuesIn(testing::kModes)),
    name_of_case);

// The recomputes are early, so that copies have time, except for odd
// micro-batches.
TEST_F(Offload, OfRecomputedCellsHasTheBitsOfTheStepWithoutIt) {
  const auto compare = [&](const std::string& size, Offloading setting) {
    setting.schedule = with_recompute(
        setting.schedule, [](int i) { return i % 2 == 0; },
        RecomputePlacement::kAhead);
    for (const auto& [model_name, model] : subjects()) {
      const StepState without = state_after(setting, model);
      Offloading with = setting;
      with.schedule = with_offload(setting.schedule, everything);
      EXPECT_EQ(difference(state_after(with, model), without), "")
          << size << ", " << model_name;
    }
  };
  for (const std::string& name : training_schedule_names()) {
    SCOPED_TRACE(name);
    for_each_size(name, false, compare);
  }
}

// Stage 2 is on rank 0 of the pipeline and on rank 1 of the schedule, whose
// workers run at the same time.
TEST_F(Offload, OfStagesOnOtherRanksOfOneDeviceHasTheBitsOfTheStepWithoutIt) {
  Offloading setting;
  setting.schedule = zero_bubble_v(2, 6);
  setting.stages_per_rank = 2;
  setting.on_one_device = true;
  for (const auto& [name, model] : subjects()) {
    const StepState without = state_after(setting, model);
    Offloading with = setting;
    with.schedule = with_offload(setting.schedule, everything);
    EXPECT_EQ(difference(state_after(with, model), without), "") << name;
  }
}

TEST_F(Offload, MayBeOfSomeCells) {
  const Schedule plain = one_forward_one_backward(3, 5);
  const Subject& model = subjects().at("conv");
  const StepState without = state_after({plain}, model);
  for (int every = 2; every < 5; ++every) {
    const Schedule some = with_offload(
        plain, [&](int stage, int i) { return (stage + i) % every == 0; });
    EXPECT_EQ(difference(state_after({some}, model), without), "") << every;
  }
  const Schedule distant = with_offload(plain, distant_cells(plain, 2));
  EXPECT_EQ(difference(state_after({distant}, model), without), "");
}

// A layer that keeps a tensor which its operator saves as well.
TEST_F(Offload, LeavesWhatLayersHold) {
  Tensor held;
  const auto make = [&] {
    nn::Sequential layers(nn::Linear(4, 4), layer([&](Tensor x) {
                            if (!held.defined()) {
                              held = torch::linspace(0, 1, 4, x.options());
                            }
                            return x * held.detach();
                          }),
                          nn::Linear(4, 2));
    layers->to(torch::kDouble);
    return layers;
  };
  const Subject model{make, {4}, {2}};
  const Schedule plain = one_forward_one_backward(1, 3);
  const StepState without = state_after({plain}, model);
  const Tensor before = held.cpu().clone();
  const Offloading with{with_offload(plain, everything)};
  EXPECT_EQ(difference(state_after(with, model), without), "");
  EXPECT_TRUE(held.cpu().equal(before));
}

// A function with a backward of its own, which needs a tensor that is neither
// input nor output.
struct Cube : torch::autograd::Function<Cube> {
  static Tensor forward(torch::autograd::AutogradContext* context,
                        const Tensor& x) {
    context->save_for_backward({x * x * 3});
    return x * x * x;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list grads) {
    return {grads[0] * context->get_saved_variables()[0]};
  }
};

TEST_F(Offload, OfRecomputedAndCustomFunctionsHasTheBitsOfTheStepWithoutIt) {
  const auto make = [] {
    nn::Sequential layers(nn::Linear(4, 4), layer([](Tensor x) {
                            return checkpoint(
                                [](const Tensor& y) {
                                  return torch::dropout(y.exp().sin(), 0.3,
                                                        /*train=*/true);
                                },
                                x);
                          }),
                          layer([](Tensor x) { return Cube::apply(x); }),
                          nn::Linear(4, 2));
    layers->to(torch::kDouble);
    return layers;
  };
  const Subject model{make, {4}, {2}};
  for (const char* const name : {"1f1b", "zb-h1"}) {
    const Schedule plain = named_schedule(name, 2, 5, 1);
    const StepState without = state_after({plain}, model);
    const Offloading with{with_offload(plain, everything)};
    EXPECT_EQ(difference(state_after(with, model), without), "") << name;
  }
}

// LibTorch does not check saved tensors with hooks, so gpipe does.
TEST_F(Offload, ReportsInPlaceChangesOfWhatABackwardNeeds) {
  const auto make = [] {
    nn::Sequential layers(nn::Linear(4, 4), layer([](Tensor x) {
                            Tensor y = x.exp();
                            y.add_(1);
                            return y;
                          }));
    layers->to(torch::kDouble);
    return layers;
  };
  const Schedule schedule =
      with_offload(one_forward_one_backward(1, 2), everything);
  const std::string error = error_of([&] {
    state_after({schedule}, {make, {4}, {4}});
  });
  EXPECT_THAT(error, HasSubstr(device().is_cpu()
                                   ? "modified by an inplace operation"
                                   : "has been changed in place since the "
                                     "forward: it is at version 1, but was at "
                                     "version 0"));
  EXPECT_THAT(error, HasSubstr("partition 0, micro-batch 0, backward"));
}

TEST_F(Offload, CopiesAreInTheMeasuredTimelineOfAnAccelerator) {
  torch::manual_seed(1);
  nn::Sequential layers = testing::linear_model();
  GPipe pipeline(
      layers, testing::options(cut(layers->size(), 2), 4, Checkpoint::kNever));
  const Schedule schedule =
      with_offload(one_forward_one_backward(2, 4),
                   [](int stage, int) { return stage == 0; });
  const StepResult result = pipeline->train_step(
      randn(8, {6}).to(device()), randn(8, {3}), mean_square, schedule,
      TrainOptions().timeline(true));
  ASSERT_TRUE(result.timeline.has_value());
  const Timeline& timeline = *result.timeline;
  EXPECT_EQ(timeline.ranks[0].size(), 8u);
  if (device().is_cpu()) {
    EXPECT_TRUE(timeline.host_copies.empty());
    return;
  }
  ASSERT_EQ(timeline.host_copies.size(), 2u);
  EXPECT_TRUE(timeline.host_copies[1].empty());
  std::string copies;
  for (const HostCopy& copy : timeline.host_copies[0]) {
    copies += to_string(copy.action) + " " + std::to_string(copy.place) + ", ";
    EXPECT_GE(copy.start, 0);
    EXPECT_GE(copy.end, copy.start);
  }
  // 0F0 0O0 0L0 0F1 0O1 0B0 0L1 0F2 0O2 0B1 0L2 0F3 0O3 0L3 0B2 0B3.
  EXPECT_EQ(copies, "0O0 1, 0L0 1, 0O1 2, 0L1 3, 0O2 4, 0L2 5, 0O3 6, 0L3 6, ");
}

}  // namespace
}  // namespace gpipe
