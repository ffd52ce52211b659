#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "balancing/balancing.h"
#include "balancing/plan.h"
#include "gpipe/gpipe.h"
#include "gpipe/meta.h"
#include "gpipe/schedule.h"
#include "gpipe/summary.h"
#include "gpipe/testing/layers.h"
#include "models/exported/exported.h"
#include "models/testing/examples.h"
#include "models/weights/safetensors.h"

namespace gpipe {

namespace {

using testing::call;
using testing::difference;
using testing::Example;
using testing::ExportedStep;
using ::testing::HasSubstr;
using testing::read_example;
using ::testing::ThrowsMessage;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kMicrobatches = 4;

// Their random numbers come from other generators than without a pipeline.
bool is_random(const std::string& name) {
  return name == "mlp" || name == "gpt" || name == "deep" || name == "dropped";
}

GPipe pipeline_of(const ExportedModel& model, int64_t parts,
                  Checkpoint checkpoint) {
  return GPipe(model.layers,
               GPipeOptions(testing::cut(model.layers->size(), parts))
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
  ExportedModel model = example.load(0);
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
    ::testing::Values("mlp", "gpt", "masked", "lstm", "unet", "regions",
                      "photos", "outlines", "letters", "styles", "tables",
                      "counted", "stateless", "seen", "resized", "deep",
                      "branches", "other_branches", "alternating", "dropped",
                      "scanned", "mapped", "looped", "alone", "experts",
                      "aliased"),
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

// ---- Sets of buffers

namespace {

// A sequence that make.py has generated, and its logits in one window.
struct Sequence {
  at::Tensor tokens, logits;
  int64_t done = 0;

  explicit Sequence(int number) {
    const StateDict all =
        read_safetensors(testing::example_file("generated.safetensors"))
            .tensors;
    tokens = all["tokens." + std::to_string(number)];
    logits = all["logits." + std::to_string(number)];
  }

  // Returns the input of the step of the next token.
  Tensors next() {
    const int64_t at = done++;
    return {tokens.slice(0, at, at + 1).unsqueeze(0), at::tensor({at})};
  }

  void expect_logits(const at::Tensor& output) const {
    EXPECT_TRUE(at::allclose(output[0][0], logits[done - 1], 1e-4, 1e-5))
        << done;
  }
};

class BufferSetsTest : public ::testing::Test {
 protected:
  BufferSetsTest()
      : model_(load_exported(testing::example_file("stepped.pt2"))) {
    model_.layers->eval();
    pipeline_ = GPipe(model_.layers,
                      GPipeOptions(testing::cut(model_.layers->size(), 2))
                          .devices({at::kCPU, at::kCPU}));
  }

  // Runs one token of each sequence, with these sets of buffers.
  void step(const std::vector<Sequence*>& sequences,
            std::vector<int64_t> sets) {
    const c10::NoGradGuard no_grad;
    Microbatches<Tensors> input;
    for (Sequence* each : sequences) input.parts.push_back(each->next());
    model_.use_buffer_sets(std::move(sets));
    const Microbatches<at::Tensor> output = pipeline_->forward(input);
    for (std::size_t k = 0; k < sequences.size(); ++k) {
      sequences[k]->expect_logits(output.parts[k]);
    }
  }

  ExportedModel model_;
  GPipe pipeline_{nullptr};
};

TEST_F(BufferSetsTest, EachSequenceHasItsOwnBuffers) {
  Sequence a(0), b(1), c(2);
  step({&a}, {4});
  step({&a, &b}, {4, 7});
  step({&b, &a}, {7, 4});
  step({&c, &b}, {0, 7});
  // Set 4 was deleted: its buffers begin again.
  a.done = 0;
  step({&c, &a, &b}, {0, 4, 7});
  while (c.done < c.tokens.size(0)) step({&c}, {0});
  for (const at::Tensor& each : model_.layers->buffers()) {
    EXPECT_EQ(each.count_nonzero().item<int64_t>(), 0);
  }
}

TEST_F(BufferSetsTest, AMicrobatchWithoutASetIsAnError) {
  Sequence a(0), b(1);
  EXPECT_THAT(
      [&] {
        step({&a, &b}, {4});
      },
      ThrowsMessage<c10::ValueError>(
          HasSubstr("there are 1 sets of buffers, but this is micro-batch 1")));
}

TEST_F(BufferSetsTest, WithoutSetsEvalRefusesChangesOfBuffers) {
  Sequence a(0);
  EXPECT_THROW(step({&a}, {}), c10::ValueError);
}

// The model takes its branches by turns.
TEST(ExportedStateTest, ADeletedSetBeginsAgain) {
  at::set_num_threads(1);
  const Example example = read_example("alternating");
  ExportedModel model = load_exported(example.path);
  const c10::NoGradGuard no_grad;
  const auto next = [&] {
    model.use_buffer_sets({0});
    return call(model.layers, example.inputs)[0];
  };
  const at::Tensor first = next(), second = next();
  EXPECT_FALSE(at::equal(first, second));
  for (const std::vector<int64_t>& others :
       {std::vector<int64_t>{}, std::vector<int64_t>{1}}) {
    model.use_buffer_sets(others);
    EXPECT_TRUE(at::equal(next(), first)) << others.size();
    EXPECT_TRUE(at::equal(next(), second)) << others.size();
  }
}

TEST(ExportedStateTest, ARecomputeWithSetsIsAnError) {
  at::set_num_threads(1);
  const Example example = read_example("alternating");
  ExportedModel model = load_exported(example.path);
  GPipe pipeline = pipeline_of(model, 1, Checkpoint::kAlways);
  for (const std::vector<int64_t>& later :
       std::vector<std::vector<int64_t>>{{0, 1, 2, 3}, {}}) {
    model.use_buffer_sets({0, 1, 2, 3});
    const at::Tensor output = call(pipeline, example.inputs)[0];
    model.use_buffer_sets(later);
    EXPECT_THAT([&] { output.sum().backward(); },
                ThrowsMessage<c10::ValueError>(HasSubstr(
                    "use Checkpoint::kNever with use_buffer_sets()")));
  }
}

TEST(ExportedStateTest, TheSignatureHasTheBuffersThatACallReadsAndChanges) {
  const ExportedSignature step =
      exported_signature(testing::example_file("stepped.pt2"));
  std::vector<std::string> state;
  for (const ExportedTensor& each : step.state) {
    state.push_back(each.name + " " + each.shape);
    EXPECT_EQ(each.changed_in_part, each.sizes.size() == 4) << each.name;
  }
  const std::vector<std::string> expected{"key_cache_0 Float [1, 2, 24, 4]",
                                          "key_cache_1 Float [1, 2, 24, 4]",
                                          "length_0 Long []",
                                          "length_1 Long []",
                                          "value_cache_0 Float [1, 2, 24, 4]",
                                          "value_cache_1 Float [1, 2, 24, 4]"};
  std::sort(state.begin(), state.end());
  EXPECT_EQ(state, expected);
  EXPECT_TRUE(
      exported_signature(testing::example_file("tiny.pt2")).state.empty());
}

TEST(ExportedStateTest, ManyTokensInOneCallNeedNoRowsInTheOutput) {
  const std::string path = testing::example_file("prefilled.pt2");
  EXPECT_THROW((void)load_exported(path), c10::ValueError);
  ExportedModel model =
      load_exported(path, ExportedOptions().concatenates(false));
  model.layers->eval();
  model.use_buffer_sets({0});
  const c10::NoGradGuard no_grad;
  Sequence a(0);
  const int64_t count = a.tokens.size(0) - 1;
  const auto call = [&](int64_t begin, int64_t end) {
    return model.layers->forward(
        Tensors{a.tokens.slice(0, begin, end).unsqueeze(0),
                at::arange(begin, end, at::kLong)})[0];
  };
  EXPECT_TRUE(
      at::allclose(call(0, count), a.logits.slice(0, 0, count), 1e-4, 1e-5));
  EXPECT_TRUE(
      at::allclose(call(count, count + 1)[0], a.logits[count], 1e-4, 1e-5));
}

TEST(ExportedStateTest, TheSignatureHasTheLargestSizes) {
  const ExportedSignature window =
      exported_signature(testing::example_file("window.pt2"));
  EXPECT_EQ(window.inputs[0].largest, (std::vector<int64_t>{4096, 24}));
  EXPECT_EQ(window.outputs[0].largest, (std::vector<int64_t>{4096, 24, 13}));
}

}  // namespace

// ---- Profiles

namespace {

using testing::example_names;
using testing::training_step;

// Calls `profile` with each example and its input, a tensor or a vector, before
// a training step. Expects the step of a model that was not profiled.
template <typename Profile>
void expect_no_traces(const Profile& profile) {
  at::set_num_threads(1);
  for (const std::string& name : example_names()) {
    const Example example = read_example(name);
    ExportedModel fresh = load_exported(example.path);
    const ExportedStep expected = training_step(fresh, example);
    ExportedModel model = load_exported(example.path);
    if (example.inputs.size() == 1) {
      profile(model.layers, example.inputs[0]);
    } else {
      profile(model.layers, example.inputs);
    }
    EXPECT_EQ(difference(training_step(model, example), expected), "") << name;
  }
}

int64_t sum_of(const std::vector<int64_t>& balance) {
  return std::accumulate(balance.begin(), balance.end(), int64_t{0});
}

TEST(ExportedProfilesTest, BalancingBySizeLeavesNoTraces) {
  expect_no_traces([](torch::nn::Sequential& layers, const auto& input) {
    const auto balance = balancing::balance_by_size(2, layers, input);
    EXPECT_EQ(balance.size(), 2u);
    EXPECT_EQ(sum_of(balance), static_cast<int64_t>(layers->size()));
  });
}

TEST(ExportedProfilesTest, BalancingByTimeLeavesNoTraces) {
  expect_no_traces([](torch::nn::Sequential& layers, const auto& input) {
    const auto balance = balancing::balance_by_time(
        3, layers, input, balancing::TimeOptions().timeout(0.01));
    EXPECT_EQ(balance.size(), 3u);
    EXPECT_EQ(sum_of(balance), static_cast<int64_t>(layers->size()));
  });
}

TEST(ExportedProfilesTest, PlansLeaveNoTraces) {
  expect_no_traces([](torch::nn::Sequential& layers, const auto& input) {
    const auto plan =
        balancing::plan(layers, input, {torch::kCPU, torch::kCPU},
                        balancing::PlanOptions().chunks({2}).profile(
                            balancing::TimeOptions().timeout(0.01)));
    ASSERT_EQ(plan.partitions.size(), 2u);
    EXPECT_EQ(plan.partitions[0].layers + plan.partitions[1].layers,
              static_cast<int64_t>(layers->size()));
  });
}

TEST(ExportedProfilesTest, SummariesNamePythonsModules) {
  expect_no_traces([](torch::nn::Sequential& layers, const auto& input) {
    const Summary all = summary(layers, input);
    ASSERT_EQ(all.layers.size(), layers->size());
    std::size_t k = 0;
    for (const auto& child : layers->named_children()) {
      EXPECT_EQ(all.layers[k].name, child.key());
      EXPECT_FALSE(all.layers[k].outputs.empty());
      ++k;
    }
  });
  const Example example = read_example("gpt");
  ExportedModel model = load_exported(example.path);
  std::ostringstream text;
  text << summary(model.layers, example.inputs[0]);
  EXPECT_NE(text.str().find("blocks_0_qkv"), std::string::npos) << text.str();
  EXPECT_NE(text.str().find("float32 [8, 12, 31]"), std::string::npos)
      << text.str();
}

TEST(ExportedProfilesTest, LoadedUnderAMetaGuardAModelHasItsShapes) {
  for (const auto& [name, shape] : {std::pair("gpt", "float32 [8, 12, 31]"),
                                    std::pair("photos", "float32 [4, 8]"),
                                    std::pair("regions", "float32 [8, 5]")}) {
    const Example example = read_example(name);
    ExportedModel model = [&] {
      const MetaGuard meta;
      return load_exported(example.path);
    }();
    for (const at::Tensor& each : model.layers->parameters()) {
      EXPECT_TRUE(each.is_meta()) << name;
    }
    ExportedModel with_values = load_exported(example.path);
    const Summary all = summary(model.layers, example.inputs[0]);
    const Summary expected = summary(with_values.layers, example.inputs[0]);
    ASSERT_EQ(all.layers.size(), expected.layers.size()) << name;
    for (std::size_t k = 0; k < all.layers.size(); ++k) {
      EXPECT_EQ(all.layers[k].bytes, expected.layers[k].bytes) << name;
    }
    EXPECT_EQ(all.layers.back().outputs[0].text(), shape);
  }
}

// Its weights have one record, and two of them the same sizes.
TEST(ExportedProfilesTest, WeightsExportedOnTheMetaDeviceAreNotTied) {
  const MetaGuard meta;
  ExportedModel model = load_exported(testing::example_file("weightless.pt2"));
  std::vector<int64_t> elements;
  for (const at::Tensor& each : model.layers->parameters()) {
    EXPECT_TRUE(each.is_meta());
    elements.push_back(each.numel());
  }
  EXPECT_EQ(elements, (std::vector<int64_t>{16, 16, 8, 2}));
  const Summary all = summary(model.layers, at::empty({3, 4}));
  EXPECT_EQ(all.bytes(), 42 * 4);
  EXPECT_EQ(all.layers.back().outputs[0].text(), "float32 [3, 2]");
}

TEST(ExportedPipelineTest, ProgramsFromOneFileNeedNames) {
  const std::string path = read_example("gpt").path;
  const auto pipeline = [&](const std::string& name) {
    const ExportedModel first = load_exported(path);
    const ExportedModel second =
        load_exported(path, ExportedOptions().name(name));
    torch::nn::Sequential all;
    for (const auto& each : *first.layers) all->push_back(each);
    for (const auto& each : *second.layers) all->push_back(each);
    GPipe(all, GPipeOptions({static_cast<int64_t>(all->size())}));
  };
  EXPECT_THAT([&] { pipeline(""); },
              ThrowsMessage<c10::TypeError>(HasSubstr("redeclared")));
  pipeline("second");
}

}  // namespace

}  // namespace gpipe
