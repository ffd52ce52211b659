#include "gpipe/runtime/cell/cell.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <functional>
#include <limits>
#include <stdexcept>

#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"

namespace gpipe::internal {
namespace {

using testing::error_of;
using ::testing::StartsWith;
using torch::Tensor;
namespace nn = torch::nn;
using ::testing::ElementsAre;
// The gradients of the leaves, by the name of the parameter.
using Grads = std::map<std::string, Tensor>;

const auto layer = [](auto function) {
  return testing::layer(std::move(function));
};

// Returns a partition on the test's device.
Partition partition_of(const std::vector<nn::AnyModule>& modules) {
  nn::Sequential model;
  model->extend(modules);
  model->to(testing::device());
  const auto count = static_cast<int64_t>(modules.size());
  return partition(layers_of(model), {count}, {testing::device()})[0];
}

Tensor rows(int64_t count) {
  return torch::arange(3 * count, torch::kFloat)
      .view({count, 3})
      .sin()
      .to(testing::device());
}

Activations input_of(const Tensor& tensor, bool requires_grad = true) {
  Activations input;
  input.boundary = {{tensor, requires_grad, false}};
  return input;
}

Activations gradients(const Tensor& grad) {
  return {Value::Kind::kVector, {{grad}}, {}};
}

LeafSink sink_of(const Partition& part, const Cell& cell, Grads& grads) {
  return [&](std::size_t leaf, const Tensor& grad) {
    Tensor& sum = grads[part.modules.name_of(cell.leaves()[leaf])];
    sum = sum.defined() ? sum + grad : grad;
  };
}

// A linear layer, ReLU, dropout and a linear layer, and the same computation
// without a cell.
struct Model {
  nn::Linear first{3, 4}, last{4, 2};
  Partition part = partition_of(
      {nn::AnyModule(first), layer([](const Tensor& x) { return x.relu(); }),
       nn::AnyModule(last)});
  Tensor input = rows(5);

  Tensor plain(const Tensor& x) { return last(first(x).relu()); }
  Grads plain_grads(const Tensor& root_grad, Tensor& input_grad) {
    const Tensor x = input.detach().requires_grad_();
    plain(x).backward(root_grad);
    input_grad = x.grad();
    Grads grads{{"0.weight", first->weight.grad()},
                {"0.bias", first->bias.grad()},
                {"2.weight", last->weight.grad()},
                {"2.bias", last->bias.grad()}};
    for (const Tensor& each : part.modules.parameters())
      each.mutable_grad() = Tensor();
    return grads;
  }
};

void expect_equal(const Grads& a, const Grads& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, grad] : a) {
    ASSERT_EQ(b.count(name), 1u) << name;
    EXPECT_TRUE(grad.equal(b.at(name))) << name;
  }
}

TEST(Cell, ForwardHasTheBitsOfTheLayersAndNoGraph) {
  for (const bool checkpointed : {false, true}) {
    Model model;
    Cell cell(model.part, 0, checkpointed);
    EXPECT_EQ(cell.checkpointed(), checkpointed);
    StepSeed seed;
    const Activations output =
        cell.forward(input_of(model.input), seed, /*leaf_input=*/false);
    ASSERT_EQ(output.boundary.size(), 1u);
    EXPECT_TRUE(output.boundary[0].tensor.equal(model.plain(model.input)));
    EXPECT_FALSE(output.boundary[0].tensor.requires_grad());
    EXPECT_TRUE(output.boundary[0].requires_grad);
    EXPECT_EQ(cell.leaves().size(), 4u);
    EXPECT_EQ(cell.layer_at_work(), "");
  }
}

TEST(Cell, BackwardHasTheBitsOfThePlainModel) {
  for (const bool checkpointed : {false, true}) {
    Model model;
    Tensor expected_input;
    const Tensor grad =
        torch::linspace(-1, 1, 10).view({5, 2}).to(testing::device());
    const Grads expected = model.plain_grads(grad, expected_input);

    Cell cell(model.part, 0, checkpointed);
    StepSeed seed;
    cell.forward(input_of(model.input), seed, false);
    if (checkpointed) cell.recompute(seed);
    Grads grads;
    const Activations back = cell.backward(gradients(grad), false, true, {},
                                           sink_of(model.part, cell, grads));
    EXPECT_TRUE(back.boundary.at(0).tensor.equal(expected_input));
    expect_equal(grads, expected);
    EXPECT_FALSE(model.first->weight.grad().defined());
  }
}

TEST(Cell, ABackwardInTwoPartsHasTheSameBits) {
  for (const bool checkpointed : {false, true}) {
    Model model;
    Tensor expected_input;
    const Tensor grad = torch::ones({5, 2}).to(testing::device());
    const Grads expected = model.plain_grads(grad, expected_input);
    Cell cell(model.part, 0, checkpointed);
    StepSeed seed;
    cell.forward(input_of(model.input), seed, false);
    if (checkpointed) cell.recompute(seed);
    const Activations back = cell.backward_input(gradients(grad));
    EXPECT_TRUE(back.boundary.at(0).tensor.equal(expected_input));
    Grads grads;
    cell.backward_weight(sink_of(model.part, cell, grads));
    expect_equal(grads, expected);
  }
}

TEST(Cell, TheGraphServesSeveralBackwardsIfItIsKept) {
  Model model;
  Tensor expected_input;
  const Tensor grad = torch::ones({5, 2}).to(testing::device());
  const Grads expected = model.plain_grads(grad, expected_input);
  Cell cell(model.part, 0, false);
  StepSeed seed;
  cell.forward(input_of(model.input), seed, false);
  for (const bool keep : {true, true, false}) {
    Grads grads;
    const Activations back = cell.backward(gradients(grad), keep, true, {},
                                           sink_of(model.part, cell, grads));
    EXPECT_TRUE(back.boundary.at(0).tensor.equal(expected_input));
    expect_equal(grads, expected);
  }
}

TEST(Cell, GradientsThatAreNotWantedAreNotComputed) {
  Model model;
  const Tensor grad = torch::ones({5, 2}).to(testing::device());
  Cell cell(model.part, 0, false);
  StepSeed seed;
  cell.forward(input_of(model.input), seed, false);
  std::vector<bool> wanted(4);
  for (std::size_t k = 0; k < 4; ++k) {
    // The numbers of the partition's list are in reverse here.
    cell.leaf_numbers().push_back(static_cast<int64_t>(3 - k));
    wanted[3 - k] = cell.leaves()[k].is_same(model.last->weight);
  }
  Grads grads;
  const Activations back =
      cell.backward(gradients(grad), false, /*want_input=*/false, wanted,
                    sink_of(model.part, cell, grads));
  EXPECT_FALSE(back.boundary.at(0).tensor.defined());
  ASSERT_EQ(grads.size(), 1u);
  EXPECT_EQ(grads.count("2.weight"), 1u);
}

TEST(Cell, ARecomputeDrawsTheSameNumbersAndRestoresBuffers) {
  nn::BatchNorm1d norm(3);
  int calls = 0;
  Partition part =
      partition_of({nn::AnyModule(norm), nn::AnyModule(nn::Dropout(0.5)),
                    layer([&](const Tensor& x) {
                      ++calls;
                      return x.exp();  // its backward needs its output
                    })});
  Cell plain(part, 0, false), checkpointed(part, 0, true);
  const Tensor grad = torch::ones({5, 3}).to(testing::device());
  std::vector<Tensor> outputs, grads;
  for (Cell* const cell : {&plain, &checkpointed}) {
    StepSeed seed;
    seed.set(7);
    const Activations output = cell->forward(input_of(rows(5)), seed, false);
    const Tensor mean = norm->running_mean.clone();
    const int64_t batches = norm->num_batches_tracked.item<int64_t>();
    if (cell->checkpointed()) cell->recompute(seed);
    EXPECT_TRUE(norm->running_mean.equal(mean));
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), batches);
    outputs.push_back(output.boundary[0].tensor);
    Grads unused;
    grads.push_back(cell->backward(gradients(grad), false, true, {},
                                   sink_of(part, *cell, unused))
                        .boundary[0]
                        .tensor);
  }
  EXPECT_EQ(calls, 3);
  EXPECT_TRUE(outputs[0].equal(outputs[1]));
  EXPECT_TRUE(grads[0].equal(grads[1]));
}

// Another worker reads the output meanwhile.
TEST(Cell, ARecomputeLeavesAnOutputThatTheLayersCount) {
  Tensor given;
  std::vector<double> seen;
  const auto count = [&](const Tensor& x) {
    if (given.defined()) seen.push_back(given.item<double>());
    Tensor rows = torch::full({}, 2., x.options());
    rows += 1;
    return std::vector<Tensor>{x * rows, rows};
  };
  Partition part = partition_of(
      {testing::layer<std::vector<Tensor>, Tensor>(std::move(count))});
  Cell cell(part, 0, true);
  StepSeed seed;
  given = cell.forward(input_of(rows(5)), seed, false).boundary.at(1).tensor;
  cell.recompute(seed);
  EXPECT_THAT(seen, ElementsAre(3));
  EXPECT_EQ(given.item<double>(), 3);
}

// Returns the error of a recompute after `change`.
std::string error_after(Model& model, const std::function<void()>& change) {
  Cell cell(model.part, 0, true);
  StepSeed seed;
  cell.forward(input_of(model.input), seed, false);
  change();
  return error_of([&] { cell.recompute(seed); });
}

TEST(Cell, RefusesARecomputeThatCannotGiveTheSame) {
  Model model;
  EXPECT_EQ(error_after(model, [] {}), "");
  EXPECT_THAT(
      error_after(model, [&] { model.input.add_(1); }),
      StartsWith("c10::Error: input 0 of partition 0 has been changed in place "
                 "between forward and backward"));
  EXPECT_THAT(error_after(model,
                          [&] {
                            const torch::NoGradGuard no_grad;
                            model.last->bias.add_(1);
                          }),
              StartsWith("c10::Error: parameter '2.bias' ([2] Float) of "
                         "partition 0 has been changed in place"));
  model.first->weight.requires_grad_(false);
  EXPECT_THAT(error_after(model, [&] { model.first->weight.add_(1); }),
              StartsWith("c10::Error: parameter '0.weight' ("));
  EXPECT_THAT(error_after(model, [&] { model.first->eval(); }),
              StartsWith("c10::Error: train() or eval() was called between "
                         "forward and backward"));
}

TEST(Cell, RefusesLayersThatReturnSomethingElseInTheRecompute) {
  int calls = 0;
  Partition part = partition_of({layer([&](const Tensor& x) {
    return ++calls == 1 ? x.mul(2) : x.mul(2).narrow(0, 0, 1);
  })});
  Cell cell(part, 0, true);
  StepSeed seed;
  cell.forward(input_of(rows(2)), seed, false);
  EXPECT_THAT(error_of([&] { cell.recompute(seed); }),
              StartsWith("c10::Error: output 0 of partition 0 is [2, "));
}

TEST(Cell, RefusesInPlaceWorkOnWhatOthersNeed) {
  Partition part = partition_of({layer([](Tensor x) { return x.relu_(); })});
  StepSeed seed;
  Cell checkpointed(part, 0, true), shared(part, 0, false),
      fine(part, 0, false);
  EXPECT_THAT(
      error_of([&] { checkpointed.forward(input_of(rows(2)), seed, false); }),
      StartsWith("c10::Error: input 0 of partition 0 has been changed in place "
                 "by the forward itself"));
  Activations input = input_of(rows(2));
  input.boundary[0].shared = true;
  EXPECT_THAT(
      error_of([&] { shared.forward(std::move(input), seed, false); }),
      StartsWith("c10::Error: a layer of partition 0 changes a tensor in "
                 "place that an earlier partition has given to more "
                 "than one layer"));
  const Activations output = fine.forward(input_of(rows(2)), seed, false);
  EXPECT_TRUE(output.boundary[0].tensor.equal(rows(2).relu()));
}

TEST(Cell, MarksOutputsOfOneMemory) {
  using Tensors = std::vector<Tensor>;
  Partition part =
      partition_of({testing::layer<Tensors>([](const Tensor& x) -> Tensors {
        const Tensor y = x * 2;
        return {y, x * 3, y};
      })});
  Cell cell(part, 0, false);
  StepSeed seed;
  const Activations output = cell.forward(input_of(rows(1)), seed, false);
  EXPECT_EQ(output.kind, Value::Kind::kVector);
  ASSERT_EQ(output.boundary.size(), 3u);
  EXPECT_TRUE(output.boundary[0].shared);
  EXPECT_FALSE(output.boundary[1].shared);
  EXPECT_TRUE(output.boundary[2].shared);
}

TEST(Cell, EndsInTheLossIfItHasAHead) {
  for (const bool checkpointed : {false, true}) {
    Model model;
    const LossFunction mean = [](Value output, Value target) {
      return (output.tensors()[0] - target.tensors()[0]).pow(2).mean();
    };
    LossHead head;
    head.function = &mean;
    head.target = Value::wrap(torch::ones({5, 2}).to(testing::device()));
    head.keep_output = true;
    Cell cell(model.part, 0, checkpointed);
    cell.set_head(&head);
    StepSeed seed;
    const Activations output = cell.forward(input_of(model.input), seed, false);
    const Tensor plain = model.plain(model.input);
    ASSERT_EQ(output.boundary.size(), 1u);
    EXPECT_TRUE(output.boundary[0].tensor.equal((plain - 1).pow(2).mean()));
    EXPECT_TRUE(head.output.tensors().at(0).equal(plain));
    EXPECT_FALSE(head.output.tensors()[0].requires_grad());
  }
}

TEST(Cell, RefusesALossThatIsNoNumberOrChangesItsTarget) {
  Model model;
  LossFunction loss;
  LossHead head;
  head.function = &loss;
  const auto error = [&](LossFunction function) {
    loss = std::move(function);
    head.target = Value::wrap(torch::ones({5, 2}).to(testing::device()));
    Cell cell(model.part, 0, /*checkpointed=*/true);
    cell.set_head(&head);
    StepSeed seed;
    return error_of([&] { cell.forward(input_of(model.input), seed, false); });
  };
  EXPECT_THAT(error([](Value output, Value) { return output.tensors()[0]; }),
              ::testing::AllOf(
                  StartsWith("c10::ValueError: the loss of a micro-batch must "
                             "be a floating-point tensor with one element, but "
                             "it is "),
                  ::testing::HasSubstr(" of sizes [5, 2]; reduce it")));
  EXPECT_THAT(error([](Value, Value) { return Tensor(); }),
              ::testing::HasSubstr("but it is undefined; reduce it"));
  EXPECT_THAT(
      error([](Value output, Value target) {
        return (output.tensors()[0] - target.tensors()[0].add_(1)).mean();
      }),
      StartsWith("c10::Error: the loss function changes its target in "
                 "place"));
}

TEST(Cell, NamesTheFirstPlaceThatIsNotFinite) {
  const double kInf = std::numeric_limits<double>::infinity();
  Model model;
  LossFunction loss = [](Value output, Value) {
    return output.tensors()[0].mean();
  };
  LossHead head;
  head.function = &loss;
  const auto error = [&](const Tensor& input) {
    Cell cell(model.part, 0, false);
    cell.set_head(&head);
    cell.check_finite(true);
    StepSeed seed;
    return error_of([&] { cell.forward(input_of(input), seed, false); });
  };
  EXPECT_EQ(error(model.input), "");
  EXPECT_THAT(error(model.input / 0),
              StartsWith("gpipe::NonFiniteError: the pipeline's input"));
  loss = [=](Value output, Value) { return output.tensors()[0].mean() * kInf; };
  EXPECT_THAT(error(model.input),
              StartsWith("gpipe::NonFiniteError: the loss"));
  const torch::NoGradGuard no_grad;
  model.last->bias.fill_(kInf);
  EXPECT_THAT(error(model.input),
              StartsWith("gpipe::NonFiniteError: the output of layer '2' ("));
}

TEST(Cell, SkipTensorsComeInAndGoOutWithTheirGradients) {
  const SkipKey in{Namespace::none(), "in"}, out{Namespace::none(), "out"};
  Partition part = partition_of({layer([=](const Tensor& x) {
    const auto popped = current_skip_tracker().load(in);
    current_skip_tracker().save(out, *popped * 5);
    return x * *popped;
  })});
  part.layers[0].skips = {"0", {out}, {in}};
  part.imports = {{in, 0, 1}};
  part.exports = {{out, 1, 2}};
  Cell cell(part, 0, false);
  Activations input = input_of(rows(2));
  const Tensor skip = rows(2) + 3;
  input.skips = {{skip, true, false}};
  StepSeed seed;
  const Activations output = cell.forward(std::move(input), seed, false);
  EXPECT_TRUE(output.boundary.at(0).tensor.equal(rows(2) * skip));
  EXPECT_TRUE(output.skips.at(0).tensor.equal(skip * 5));
  EXPECT_TRUE(output.skips[0].requires_grad);

  const Tensor one = torch::ones_like(skip);
  Grads unused;
  const Activations back =
      cell.backward({Value::Kind::kVector, {{one}}, {{one}}}, false, true, {},
                    sink_of(part, cell, unused));
  EXPECT_TRUE(back.boundary.at(0).tensor.equal(skip));
  EXPECT_TRUE(back.skips.at(0).tensor.equal(rows(2) + 5));
}

TEST(Cell, KnowsTheLayerThatThrows) {
  Partition part = partition_of({layer([](const Tensor& x) { return x * 2; }),
                                 layer([](const Tensor&) -> Tensor {
                                   throw std::out_of_range("no row 7");
                                 })});
  Cell cell(part, 0, false);
  StepSeed seed;
  EXPECT_EQ(error_of([&] { cell.forward(input_of(rows(1)), seed, false); }),
            "std::out_of_range: no row 7");
  EXPECT_EQ(cell.layer_at_work(), "1");
}

TEST(Cell, RefusesAnUndefinedOutput) {
  Partition part =
      partition_of({layer([](const Tensor&) { return Tensor(); })});
  Cell cell(part, 0, false);
  StepSeed seed;
  EXPECT_EQ(error_of([&] { cell.forward(input_of(rows(1)), seed, false); }),
            "c10::TypeError: layer '0' returned an undefined tensor; only "
            "elements of a vector or a tuple may be undefined");
}

TEST(Cell, HoldsItsInputUntilItIsReleasedIfItIsCheckpointed) {
  Model model;
  StepSeed seed;
  for (const bool checkpointed : {false, true}) {
    Tensor input = rows(5);
    Cell cell(model.part, 0, checkpointed);
    cell.forward(input_of(input), seed, false);
    EXPECT_EQ(input.use_count(), checkpointed ? 2 : 1);
    EXPECT_EQ(cell.leaves().size(), 4u);
    cell.release();
    EXPECT_EQ(input.use_count(), 1);
    EXPECT_TRUE(cell.leaves().empty());
  }
}

TEST(Cell, WithoutGradModeThereIsNoGraph) {
  Model model;
  const torch::NoGradGuard no_grad;
  Cell cell(model.part, 0, false);
  StepSeed seed;
  const Activations output = cell.forward(input_of(model.input), seed, false);
  EXPECT_FALSE(output.boundary[0].requires_grad);
  EXPECT_TRUE(output.boundary[0].tensor.equal(model.plain(model.input)));
  EXPECT_TRUE(cell.leaves().empty());
}

SkipKey key(const std::string& name) { return {Namespace::none(), name}; }

// A partition that imports "in" and "none", and exports "out" and "also".
Partition some_partition() {
  Partition partition;
  partition.index = 1;
  partition.imports = {{key("in"), 0, 1}, {key("none"), 0, 1}};
  partition.exports = {{key("out"), 1, 2}, {key("also"), 1, 3}};
  return partition;
}

TEST(CellTracker, GivesEachImportOnce) {
  const Partition partition = some_partition();
  const Tensor in = at::ones({2});
  CellTracker tracker(partition, {in, std::nullopt});
  EXPECT_TRUE(tracker.find(key("in"))->is_same(in));
  EXPECT_EQ(tracker.find(key("none")), nullptr);
  EXPECT_TRUE(tracker.load(key("in"))->is_same(in));
  EXPECT_FALSE(tracker.load(key("none")).has_value());
  EXPECT_EQ(tracker.find(key("in")), nullptr);
  for (const char* name : {"in", "none", "never"}) {
    EXPECT_EQ(error_of([&] { tracker.load(key(name)); }),
              "c10::Error: '" + std::string(name) + "' has not been stashed");
  }
}

TEST(CellTracker, HoldsATensorNoLongerThanUntilItsPop) {
  const Partition partition = some_partition();
  Tensor in = at::ones({2});
  CellTracker tracker(partition, {in, std::nullopt});
  const Tensor inner = at::ones({2});
  tracker.save(key("inner"), inner);
  EXPECT_EQ(in.use_count(), 2);
  EXPECT_EQ(inner.use_count(), 2);
  tracker.load(key("in"));
  tracker.load(key("inner"));
  EXPECT_EQ(in.use_count(), 1);
  EXPECT_EQ(inner.use_count(), 1);
}

TEST(CellTracker, MovesExportsOutInTheOrderOfThePartition) {
  const Partition partition = some_partition();
  const Tensor out = at::ones({2});
  CellTracker tracker(partition, {std::nullopt, std::nullopt});
  tracker.save(key("also"), std::nullopt);
  tracker.save(key("out"), at::zeros({1}));
  tracker.save(key("out"), out);  // the last one counts
  const auto exported = tracker.take_exported();
  ASSERT_EQ(exported.size(), 2u);
  EXPECT_TRUE(exported[0]->is_same(out));
  EXPECT_FALSE(exported[1].has_value());
  EXPECT_EQ(out.use_count(), 2);
}

TEST(CellTracker, NamesWhatALayerHasNotStashedOrPopped) {
  const Partition partition = some_partition();
  CellTracker tracker(partition, {at::ones({1}), std::nullopt});
  const LayerSkips stashes{"0", {key("out"), key("also")}, {}};
  const LayerSkips pops{"1", {}, {key("in")}};
  tracker.save(key("out"), at::ones({1}));
  EXPECT_EQ(error_of([&] { tracker.check_done(stashes); }),
            "c10::Error: 'also' must be stashed but have not");
  tracker.save(key("also"), at::ones({1}));
  tracker.check_done(stashes);
  EXPECT_EQ(error_of([&] { tracker.check_done(pops); }),
            "c10::Error: 'in' must be popped but have not");
  tracker.load(key("in"));
  tracker.check_done(pops);
  // What an earlier layer has stashed does not count for a later one.
  EXPECT_EQ(error_of([&] { tracker.check_done(stashes); }),
            "c10::Error: 'out' must be stashed but have not");
}

std::vector<Activation> activations(const std::vector<Tensor>& tensors,
                                    bool shared = false) {
  std::vector<Activation> all;
  for (const Tensor& each : tensors) all.push_back({each, false, shared});
  return all;
}

std::vector<bool> marks(const std::vector<Activation>& all) {
  std::vector<bool> marks;
  for (const Activation& each : all) marks.push_back(each.shared);
  return marks;
}

std::vector<bool> marked(const std::vector<Tensor>& tensors) {
  auto all = activations(tensors);
  mark_shared(all);
  return marks(all);
}

TEST(MarkShared, MarksBothOfTwoThatOverlap) {
  const Tensor x = at::arange(6);
  EXPECT_THAT(marked({x, at::arange(6), x}), ElementsAre(true, false, true));
  EXPECT_THAT(marked({x, x.view({2, 3})}), ElementsAre(true, true));
  EXPECT_THAT(marked({x.narrow(0, 0, 4), x.narrow(0, 3, 3)}),
              ElementsAre(true, true));
  const Tensor rows = at::arange(12).view({3, 4});
  EXPECT_THAT(marked({rows.narrow(1, 0, 2), rows.narrow(1, 1, 2)}),
              ElementsAre(true, true));
  EXPECT_THAT(marked({rows.narrow(1, 2, 2), rows.slice(0, 1)}),
              ElementsAre(true, true));
  // Whether these overlap is not known.
  EXPECT_THAT(marked({rows.narrow(1, 0, 2), rows.t().narrow(0, 2, 2)}),
              ElementsAre(true, true));
}

TEST(MarkShared, LeavesDisjointAndUndefinedOnesAlone) {
  const Tensor x = at::arange(6);
  EXPECT_THAT(marked({x.narrow(0, 0, 3), x.narrow(0, 3, 3)}),
              ElementsAre(false, false));
  EXPECT_THAT(marked({x.slice(0, 0, 6, 2), x.slice(0, 1, 6, 2)}),
              ElementsAre(false, false));
  const Tensor blocks = at::arange(24).view({2, 3, 4});
  EXPECT_THAT(marked({blocks.narrow(1, 0, 1), blocks.narrow(1, 1, 2)}),
              ElementsAre(false, false));
  EXPECT_THAT(marked({blocks.narrow(2, 2, 2).transpose(0, 1),
                      blocks.narrow(2, 0, 2).transpose(0, 1)}),
              ElementsAre(false, false));
  EXPECT_THAT(marked({Tensor(), Tensor(), x}),
              ElementsAre(false, false, false));
}

TEST(SharedInput, DetectsAChangeOfASharedTensorOnly) {
  const Tensor shared = at::zeros({2}), alone = at::zeros({2});
  auto all = activations({shared}, true);
  all.push_back({alone, false, false});
  all.push_back({Tensor(), false, true});
  const SharedInput input(all);
  alone.add_(1);
  input.check_unchanged(3);
  shared.view({1, 2}).add_(1);
  EXPECT_THAT(
      error_of([&] { input.check_unchanged(3); }),
      StartsWith("c10::Error: a layer of partition 3 changes a tensor in place "
                 "that an earlier partition has given to more than one layer"));
  Activation unsplit{alone, false, true};
  unsplit.unsplit = 0;
  const SharedInput input_of_all({unsplit});
  alone.add_(1);
  EXPECT_THAT(
      error_of([&] { input_of_all.check_unchanged(0); }),
      StartsWith("c10::Error: a layer of partition 0 changes a tensor in place "
                 "that all micro-batches share, such as an element of "
                 "unsplit(), so that the others would get another value"));
}

TEST(SharedInput, MarksOutputsOfItsMemory) {
  const Tensor shared = at::zeros({4}), alone = at::zeros({4});
  auto all = activations({shared}, true);
  all.push_back({alone, false, false});
  const SharedInput input(all);
  auto outputs = activations(
      {alone, shared.narrow(0, 1, 2), Tensor(), at::zeros({4}), shared});
  input.mark(outputs);
  EXPECT_THAT(marks(outputs), ElementsAre(false, true, false, false, true));
}

// A conjugate has the memory, sizes and strides of its tensor.
TEST(SharedInput, KnowsOnlyTheSameViewOfATensorThatAllMicrobatchesShare) {
  const Tensor whole = at::zeros({2, 2}, at::kComplexDouble);
  auto all = activations({whole});
  all[0].unsplit = 4;
  auto outputs = activations({whole, whole.conj(), whole.t(), at::imag(whole),
                              at::imag(whole.conj())});
  SharedInput(all).mark(outputs);
  std::vector<int> unsplit;
  for (const Activation& each : outputs) unsplit.push_back(each.unsplit);
  EXPECT_THAT(unsplit, ElementsAre(4, -1, -1, -1, -1));
  EXPECT_FALSE(is_same_view(outputs[3].tensor, outputs[4].tensor));
}

TEST(SharedInput, DoesNotKeepTensorsAlive) {
  Tensor shared = at::zeros({4});
  const c10::weak_intrusive_ptr<c10::StorageImpl> memory =
      shared.storage().getWeakStorageImpl();
  const SharedInput input(activations({shared}, true));
  shared.reset();
  EXPECT_TRUE(memory.expired());
  auto outputs = activations({at::zeros({4})});
  input.mark(outputs);
  EXPECT_THAT(marks(outputs), ElementsAre(false));
  input.check_unchanged(0);
}

}  // namespace
}  // namespace gpipe::internal
