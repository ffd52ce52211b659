// Exported programs in pipelines: the bits of no pipeline.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <algorithm>
#include <map>

#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "models/exported/exported.h"
#include "models/exported/testing/examples.h"

namespace gpipe {
namespace {

using testing::call;
using testing::difference;
using testing::Example;
using testing::ExportedStep;
using testing::read_example;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kMicrobatches = 4;

// Their random numbers come from other generators than without a pipeline.
bool is_random(const std::string& name) {
  return name == "tiny" || name == "mlp" || name == "gpt" || name == "deep" ||
         name == "dropped";
}

GPipe pipeline_of(const ExportedModel& model, int64_t parts,
                  Checkpoint checkpoint) {
  const auto layers = static_cast<int64_t>(model.layers->size());
  std::vector<int64_t> balance;
  for (int64_t k = 0; k < parts; ++k) {
    balance.push_back((k + 1) * layers / parts - k * layers / parts);
  }
  return GPipe(model.layers,
               GPipeOptions(balance)
                   .devices(std::vector<torch::Device>(parts, torch::kCPU))
                   .chunks(kMicrobatches)
                   .checkpoint(checkpoint)
                   .threads_per_partition(1));
}

Tensors piece_of(const Tensors& tensors, int64_t microbatch) {
  Tensors pieces;
  for (const at::Tensor& each : tensors) {
    pieces.push_back(each.chunk(kMicrobatches)[microbatch]);
  }
  return pieces;
}

// Runs the micro-batches one after the other in one layer. The backwards come
// in reverse order if `reverse`. `scale`: of each loss.
ExportedStep without_pipeline(const Example& example, bool reverse,
                              double scale) {
  ExportedModel model =
      load_exported(example.path, ExportedOptions().max_crossing(0));
  std::vector<Tensors> outputs;
  for (int64_t k = 0; k < kMicrobatches; ++k) {
    outputs.push_back(call(model.layers, piece_of(example.inputs, k)));
  }
  for (int64_t k = 0; k < kMicrobatches; ++k) {
    const int64_t j = reverse ? kMicrobatches - 1 - k : k;
    (testing::loss_of(outputs[j], piece_of(example.weights, j)) * scale)
        .backward();
  }
  return testing::step_of(model, exported::join_rows(outputs));
}

ExportedStep forward_and_backward(const Example& example, int64_t parts,
                                  Checkpoint checkpoint) {
  ExportedModel model = load_exported(example.path);
  GPipe pipeline = pipeline_of(model, parts, checkpoint);
  torch::manual_seed(7);
  const Tensors outputs = call(pipeline, example.inputs);
  testing::loss_of(outputs, example.weights).backward();
  return testing::step_of(model, outputs);
}

ExportedStep train_step(const Example& example, int64_t parts,
                        Checkpoint checkpoint, const Schedule& schedule) {
  ExportedModel model = load_exported(example.path);
  GPipe pipeline = pipeline_of(model, parts, checkpoint);
  torch::manual_seed(7);
  const auto options = TrainOptions().fixed_sum_order(true).outputs(true);
  Tensors outputs;
  if (example.inputs.size() == 1) {
    outputs.push_back(pipeline
                          ->train_step(
                              example.inputs[0], example.weights[0],
                              [](at::Tensor output, at::Tensor weight) {
                                return testing::loss_of({output}, {weight}) /
                                       output.size(0);
                              },
                              schedule, options)
                          .output());
  } else {
    outputs = pipeline
                  ->train_step<Tensors>(
                      example.inputs, example.weights,
                      [](Tensors outputs, Tensors weights) {
                        return testing::loss_of(outputs, weights) /
                               outputs[0].size(0);
                      },
                      schedule, options)
                  .output<Tensors>();
  }
  return testing::step_of(model, outputs);
}

class ExportedPipelinesTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

// Returns how many partitions to try, at most 4.
std::vector<int> partitions(const Example& example, int first) {
  const auto layers =
      static_cast<int>(load_exported(example.path).layers->size());
  std::vector<int> counts;
  for (int k = first; k <= std::min(4, layers); ++k) counts.push_back(k);
  return counts;
}

TEST_P(ExportedPipelinesTest, ForwardHasTheBitsOfNoPipeline) {
  const Example example = read_example(GetParam());
  const ExportedStep expected =
      is_random(GetParam())
          ? forward_and_backward(example, 1, Checkpoint::kNever)
          : without_pipeline(example, /*reverse=*/true, 1);
  for (const int parts : partitions(example, 1)) {
    for (const Checkpoint mode : {Checkpoint::kNever, Checkpoint::kAlways}) {
      EXPECT_EQ(
          difference(forward_and_backward(example, parts, mode), expected), "")
          << parts << " partitions, " << to_string(mode);
    }
  }
}

TEST_P(ExportedPipelinesTest, SchedulesHaveTheBitsOfNoPipeline) {
  const Example example = read_example(GetParam());
  const auto rows = static_cast<double>(example.inputs[0].size(0));
  const ExportedStep expected =
      is_random(GetParam())
          ? train_step(example, 1, Checkpoint::kNever,
                       fill_drain(1, kMicrobatches))
          : without_pipeline(example, /*reverse=*/false, 1 / rows);
  for (const int parts : partitions(example, 2)) {
    const std::map<std::string, Schedule> schedules = {
        {"fill-drain", fill_drain(parts, kMicrobatches)},
        {"1F1B", one_forward_one_backward(parts, kMicrobatches)},
        {"ZB-H1", zero_bubble_h1(parts, kMicrobatches)}};
    for (const auto& [name, schedule] : schedules) {
      for (const Checkpoint mode : {Checkpoint::kNever, Checkpoint::kAlways}) {
        EXPECT_EQ(
            difference(train_step(example, parts, mode, schedule), expected),
            "")
            << name << ", " << parts << " partitions, " << to_string(mode);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Examples, ExportedPipelinesTest,
    ::testing::Values("tiny", "mlp", "gpt", "masked", "lstm", "unet", "regions",
                      "photos", "outlines", "letters", "styles", "tables",
                      "counted", "stateless", "seen", "resized", "deep",
                      "branches", "other_branches", "alternating", "dropped",
                      "scanned", "mapped", "looped", "experts"),
    [](const auto& info) { return std::string(info.param); });

TEST(ExportedBranchesTest, EachMicrobatchTakesItsOwn) {
  at::set_num_threads(1);
  const Example example = read_example("branches");
  std::vector<bool> choices;
  for (int64_t k = 0; k < kMicrobatches; ++k) {
    const at::Tensor rows = piece_of(example.inputs, k)[0];
    choices.push_back(rows.select(1, 0).sum().item<double>() > 0);
  }
  EXPECT_EQ(choices, std::vector<bool>({true, false, true, false}));
  const ExportedStep step =
      forward_and_backward(example, 2, Checkpoint::kAlways);
  for (const char* name : {"a.weight", "b.weight"}) {
    EXPECT_GT(step.grads[name].abs().max().item<double>(), 0) << name;
  }
}

TEST(ExportedNormsTest, DeferredStatisticsAreThoseOfTheWholeMiniBatch) {
  at::set_num_threads(1);
  const Example example = read_example("tiny");
  ExportedModel plain = load_exported(example.path);
  call(plain.layers, example.inputs);
  ExportedModel model = load_exported(example.path);
  const auto layers = static_cast<int64_t>(model.layers->size());
  GPipe pipeline(model.layers, GPipeOptions({1, layers - 1})
                                   .devices({torch::kCPU, torch::kCPU})
                                   .chunks(2)
                                   .deferred_batch_norm(true));
  call(pipeline, example.inputs);
  for (const char* name : {"1.running_mean", "1.running_var"}) {
    EXPECT_TRUE(at::allclose(model.state_dict()[name], plain.state_dict()[name],
                             1e-5, 1e-6))
        << name;
  }
  EXPECT_EQ(model.state_dict()["1.num_batches_tracked"].item<int64_t>(), 1);
}

}  // namespace
}  // namespace gpipe
