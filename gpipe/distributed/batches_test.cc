// Weighted losses, batches that are already split, and unsplit elements in
// several processes. Each rank compares its gradients with those of a GPipe, or
// with one plain forward and backward.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gpipe/distributed/gather.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/testing/comparison.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"

namespace gpipe {
namespace {

using testing::AddMask;
using testing::argument;
using testing::check;
using testing::cut;
using testing::EndMask;
using testing::error_of;
using testing::expect_ok;
using testing::kIgnored;
using testing::mean_square;
using testing::RankProgramEntry;
using testing::Sequences;
using testing::Setting;
using testing::settings;
using testing::token_loss;
using testing::world_options;
using torch::Tensor;
namespace nn = torch::nn;

DistributedPipeline pipeline_for(const std::shared_ptr<World>& world,
                                 nn::Sequential model, const Setting& setting,
                                 int replicas) {
  const auto stages = setting.schedule.ranks.size() * setting.stages_per_rank;
  return DistributedPipeline(
      model,
      testing::on_cpu(cut(model->size(), static_cast<int>(stages)))
          .data_parallel(replicas)
          .stages_per_rank(setting.stages_per_rank)
          .placement(testing::placement_of(setting.schedule)),
      world);
}

// Returns the parts that a rank needs; none on other ranks.
Microbatches<Tensor> parts_if(bool needed, const std::vector<Tensor>& all) {
  return {needed ? all : std::vector<Tensor>()};
}

StepResult step_of(DistributedPipeline& pipeline, const Sequences& batch,
                   const Schedule& schedule) {
  const auto& layout = pipeline->layout();
  return pipeline->train_step(parts_if(layout.has_first(), batch.tokens),
                              parts_if(layout.has_last(), batch.targets),
                              token_loss, schedule);
}

void clear_grads(nn::Module& module) {
  for (const Tensor& each : module.parameters()) each.mutable_grad() = Tensor();
}

// Each step has other lengths, so that no shape is as it was before.
std::vector<int64_t> lengths_of(int step) {
  std::vector<int64_t> lengths = testing::token_lengths();
  std::rotate(lengths.begin(), lengths.begin() + step, lengths.end());
  return lengths;
}

// Without replicas, gradients and results have the bits of one process.
const RankProgramEntry kProcesses("processes", [](auto& world) {
  for (const auto& [name, setting] : settings(world->size(), 8, {8})) {
    DistributedPipeline pipeline =
        pipeline_for(world, testing::token_model(), setting, 1);
    GPipe reference(testing::token_model(),
                    testing::on_cpu(pipeline->balance(), world->size())
                        .stages_per_rank(setting.stages_per_rank)
                        .placement(testing::placement_of(setting.schedule)));
    for (int step = 0; step < 3; ++step) {
      const Sequences batch = testing::sequences(lengths_of(step), step);
      clear_grads(*pipeline);
      clear_grads(*reference);
      const StepResult result = step_of(pipeline, batch, setting.schedule);
      const StepResult expected = reference->train_step(
          Microbatches<Tensor>{batch.tokens},
          Microbatches<Tensor>{batch.targets}, token_loss, setting.schedule);
      const std::string place = name + ", step " + std::to_string(step);
      check(result.loss.equal(expected.loss), place + ": loss");
      check(result.weight == expected.weight, place + ": weight");
      check(result.metric("correct").equal(expected.metric("correct")),
            place + ": metric");
      testing::check_same_state(*pipeline, *reference, place);
      const auto grads = reference->named_parameters();
      const auto plain =
          testing::plain_token_grads(testing::token_model(), {batch});
      for (const auto& [key, grad] : plain) {
        const Tensor difference = grads[key].grad() - grad;
        check(difference.abs().max().item<double>() < 1e-12,
              place + ": plain gradient of " + key);
      }
    }
  }
});

// A replica that has no rows left passes an empty mini-batch. Gradients are as
// if the replica were not there.
const RankProgramEntry kNoRows("no_rows", [](auto& world) {
  const int ranks = world->size() / 2;
  const auto make = [] {
    torch::manual_seed(3);
    nn::Sequential model(nn::Linear(4, 4), nn::Tanh(), nn::Linear(4, 2));
    model->to(torch::kDouble);
    return model;
  };
  for (const int64_t microbatches : {1, 3}) {
    const auto schedule = fill_drain(ranks, static_cast<int>(microbatches));
    DistributedPipeline pipeline(
        make(), testing::on_cpu(cut(3, ranks)).data_parallel(2), world);
    const bool is_empty = pipeline->layout().replica == 1;
    const int64_t rows = is_empty ? 0 : 6;
    torch::manual_seed(5);
    const Tensor input = torch::randn({6, 4}, torch::kDouble);
    const Tensor target = torch::randn({6, 2}, torch::kDouble);
    // With several micro-batches, each of them must be given.
    const auto parts = [&](const Tensor& all) {
      return Microbatches<Tensor>{
          all.narrow(0, 0, rows).tensor_split(microbatches)};
    };
    const StepResult result =
        microbatches == 1 ? pipeline->train_step(input.narrow(0, 0, rows),
                                                 target.narrow(0, 0, rows),
                                                 mean_square, schedule)
                          : pipeline->train_step(parts(input), parts(target),
                                                 mean_square, schedule);
    nn::Sequential plain = make();
    const Tensor expected = mean_square(plain->forward(input), target);
    expected.backward();
    check(result.loss.allclose(expected), "the loss");
    const auto grads = plain->named_parameters();
    for (const auto& each : pipeline->named_parameters()) {
      check(
          each.value().grad().allclose(grads[each.key()].grad(), 1e-12, 1e-12),
          each.key());
    }
  }
});

// In bfloat16, gradients have the bits of one process and of plain LibTorch.
const RankProgramEntry kBFloat16("bfloat16", [](auto& world) {
  const auto make = [] {
    nn::Sequential model = testing::token_model();
    model->to(torch::kBFloat16);
    return model;
  };
  const Sequences batch = testing::sequences(lengths_of(1), 6);
  const auto plain = testing::added_token_grads(make(), batch);
  for (const char* name : {"1f1b", "zb-h1"}) {
    Setting setting;
    setting.schedule = named_schedule(name, world->size(), 8, 1);
    DistributedPipeline pipeline = pipeline_for(world, make(), setting, 1);
    GPipe reference(make(),
                    testing::on_cpu(pipeline->balance(), world->size()));
    const auto train = [&](PipelineModule& module) {
      return module.train_step(Microbatches<Tensor>{batch.tokens},
                               Microbatches<Tensor>{batch.targets},
                               testing::token_loss_in_float, setting.schedule);
    };
    check(train(*pipeline).loss.equal(train(*reference).loss), "loss");
    const auto grads = reference->named_parameters();
    for (const auto& each : pipeline->named_parameters()) {
      const Tensor grad = each.value().grad();
      const std::string place = std::string(name) + ", " + each.key();
      check(grad.scalar_type() == torch::kBFloat16, place + ": dtype");
      check(grad.equal(grads[each.key()].grad()), place + ": one process");
      for (const auto& [key, expected] : plain) {
        if (key != each.key()) continue;
        check(grad.equal(expected), place + ": plain");
      }
    }
  }
});

// With two replicas, gradients are those of one plain step over both, and equal
// in both.
const RankProgramEntry kReplicas("replicas", [](auto& world) {
  for (const auto& [name, setting] : settings(world->size() / 2, 8, {8})) {
    const std::vector<Sequences> batches = {
        testing::sequences(lengths_of(0), 7),
        testing::sequences(lengths_of(3), 8)};
    DistributedPipeline pipeline =
        pipeline_for(world, testing::token_model(), setting, 2);
    const StepResult result = step_of(
        pipeline, batches[pipeline->layout().replica], setting.schedule);
    const auto plain =
        testing::plain_token_grads(testing::token_model(), batches);
    std::string bytes;
    for (const auto& each : pipeline->named_parameters()) {
      const Tensor grad = each.value().grad().contiguous();
      bytes.append(static_cast<const char*>(grad.data_ptr()), grad.nbytes());
      for (const auto& [key, expected] : plain) {
        if (key != each.key()) continue;
        const Tensor difference = grad - expected;
        check(difference.abs().max().item<double>() < 1e-12,
              name + ": gradient of " + key);
      }
    }
    const auto all = all_gather(*world, bytes);
    check(all[world->rank()] ==
              all[(world->rank() + world->size() / 2) % world->size()],
          name + ": the replicas differ");
    double count = 0;
    for (const Sequences& batch : batches) {
      for (const Tensor& each : batch.targets) {
        count += (each != kIgnored).sum().item<double>();
      }
    }
    check(*result.weight == count, name + ": weight");
    // The totals are those of both replicas, and `losses` those of this one.
    nn::Sequential model = testing::token_model();
    double sum = 0, correct = 0;
    for (int replica = 0; replica < 2; ++replica) {
      const Sequences& batch = batches[replica];
      for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
        const torch::NoGradGuard no_grad;
        const WeightedLoss loss =
            token_loss(model->forward(batch.tokens[i]), batch.targets[i]);
        sum += loss.sum.item<double>();
        correct += loss.metrics.at(0).second.item<double>();
        if (replica != pipeline->layout().replica) continue;
        check(std::abs(result.losses.at(i).item<double>() -
                       loss.sum.item<double>()) < 1e-12,
              name + ": losses");
      }
    }
    check(result.losses.size() == 8, name + ": number of losses");
    check(std::abs(result.loss.item<double>() - sum / count) < 1e-12,
          name + ": loss");
    check(result.metric("correct").item<double>() == correct,
          name + ": metric");
  }
});

// A total weight of 0 is the same error on all ranks, and the world goes on.
const RankProgramEntry kNoWeight("no weight", [](auto& world) {
  Setting setting;
  setting.schedule = one_forward_one_backward(world->size() / 2, 2);
  DistributedPipeline pipeline =
      pipeline_for(world, testing::token_model(), setting, 2);
  Sequences batch = testing::sequences({3, 5}, 1);
  for (Tensor& each : batch.targets) each.fill_(kIgnored);
  const std::string error =
      error_of([&] { step_of(pipeline, batch, setting.schedule); });
  check(error.find("c10::ValueError: the total of WeightedLoss::weight") == 0,
        error);
  for (const Tensor& each : pipeline->parameters()) {
    check(!each.grad().defined(), "a gradient");
  }
  if (pipeline->layout().replica == 1) batch.targets[1].fill_(3);
  const StepResult result = step_of(pipeline, batch, setting.schedule);
  check(*result.weight == 5, "weight");
  check(pipeline->parameters()[0].grad().defined(), "no gradient");
});

// A refused step draws no random numbers, as in one process.
const RankProgramEntry kNoDraw("no draw", [](auto& world) {
  DistributedPipeline pipeline(
      nn::Sequential(nn::Linear(4, 4), nn::Dropout(0.5), nn::Linear(4, 2)),
      testing::on_cpu({2, 1}), world);
  const Tensor x = torch::ones({4, 4});
  const auto seed_after = [&](int64_t weight) {
    torch::manual_seed(6);
    const std::string error = error_of([&] {
      pipeline->train_step(
          x, x,
          [&](const Tensor& y, const Tensor&) {
            return WeightedLoss{y.sum(), torch::tensor(weight)};
          },
          fill_drain(2, 2));
    });
    check(error.empty() == (weight > 0), error);
    return torch::randint(1 << 30, {1}).item<int64_t>();
  };
  const int64_t after_refusal = seed_after(0), after_step = seed_after(1);
  torch::manual_seed(6);
  check(after_refusal == torch::randint(1 << 30, {1}).item<int64_t>(),
        "a refused step has drawn");
  check(after_step != after_refusal, "a step has not drawn");
});

// A replica without rows passes parts, the other one a whole mini-batch whose
// first tensor has no rows.
const RankProgramEntry kTwoForms("two forms", [](auto& world) {
  using Pair = std::tuple<Tensor, Tensor>;
  const auto make = [] {
    torch::manual_seed(3);
    nn::Sequential model;
    model->push_back(testing::layer<Tensor, Pair>([](Pair mask_and_x) {
      return std::get<1>(mask_and_x) * std::get<0>(mask_and_x).sum();
    }));
    model->push_back(nn::Linear(3, 2));
    return model;
  };
  DistributedPipeline pipeline(
      make(), testing::on_cpu({1, 1}).data_parallel(2).unsplit({0}), world);
  const Tensor mask = torch::ones({5}), x = torch::rand({4, 3});
  const Tensor y = torch::rand({4, 2});
  const auto schedule = fill_drain(2, 2);
  StepResult result;
  if (pipeline->layout().replica == 0) {
    result = pipeline->train_step(Pair(mask, x), y, mean_square, schedule);
  } else {
    const Pair input(mask, x.narrow(0, 0, 0));
    const Tensor target = y.narrow(0, 0, 0);
    result = pipeline->train_step(Microbatches<Pair>{{input, input}},
                                  Microbatches<Tensor>{{target, target}},
                                  mean_square, schedule);
  }
  nn::Sequential plain = make();
  const Tensor expected = mean_square(plain->forward(Pair(mask, x)), y);
  expected.backward();
  check(result.loss.allclose(expected), "the loss");
  const auto grads = plain->named_parameters();
  for (const auto& each : pipeline->named_parameters()) {
    check(each.value().grad().allclose(grads[each.key()].grad()), each.key());
  }
});

// Losses that are means count by the rows of the targets.
const RankProgramEntry kMeans("means", [](auto& world) {
  const int ranks = world->size() / 2;
  Setting setting;
  setting.schedule = one_forward_one_backward(ranks, 2);
  nn::Sequential plain(nn::Linear(3, 2), nn::Linear(2, 1));
  const auto make = [&] {
    torch::manual_seed(4);
    nn::Sequential model(nn::Linear(3, 2), nn::Linear(2, 1));
    model->to(torch::kDouble);
    return model;
  };
  DistributedPipeline pipeline = pipeline_for(world, make(), setting, 2);
  plain = make();
  torch::manual_seed(9);
  Tensor total;
  std::vector<std::vector<Tensor>> inputs(2);
  for (int replica = 0; replica < 2; ++replica) {
    for (const int64_t rows : {1 + replica, 4}) {
      inputs[replica].push_back(torch::randn({rows, 3}, torch::kDouble));
      const Tensor sum = plain->forward(inputs[replica].back()).pow(2).sum();
      total = total.defined() ? total + sum : sum;
    }
  }
  (total / 11).backward();  // 1 + 4 + 2 + 4 rows
  const auto& mine = inputs[pipeline->layout().replica];
  pipeline->train_step(
      parts_if(pipeline->layout().has_first(), mine),
      parts_if(pipeline->layout().has_last(), mine),
      [](const Tensor& output, const Tensor&) { return output.pow(2).mean(); },
      setting.schedule);
  const auto grads = plain->named_parameters();
  for (const auto& each : pipeline->named_parameters()) {
    check(each.value().grad().allclose(grads[each.key()].grad(), 1e-12, 1e-14),
          each.key());
  }
});

// An unsplit mask crosses each boundary once a step, also when messages are
// predicted.
const RankProgramEntry kUnsplit("unsplit", [](auto& world) {
  const auto model = nn::Sequential(AddMask(), AddMask(), EndMask());
  DistributedPipeline pipeline(model, testing::on_cpu({1, 1, 1}).unsplit({1}),
                               world);
  for (int step = 0; step < 5; ++step) {
    const Tensor x = torch::full({8, 3}, 1.f + static_cast<float>(step));
    const Tensor mask = torch::arange(3, torch::kFloat) + step;
    const StepResult result = pipeline->train_step(
        std::make_tuple(x, mask), x,
        [](const Tensor& y, const Tensor&) { return y.sum(1).mean(); },
        forward_only(3, 4), TrainOptions().timeline(true).outputs(true));
    double bytes = 0;
    for (const auto& each : result.timeline->transfers) bytes += each.bytes;
    // At a boundary: 4 micro-batches of 2 x 3 floats, and 3 floats once.
    const double boundary = 4 * 24 + 12;
    const bool inner = world->rank() == 1;
    check(bytes == (inner ? 2 : 1) * boundary,
          std::to_string(bytes) + " bytes in step " + std::to_string(step));
    if (pipeline->layout().has_last()) {
      check(result.output().equal(x * 4 + mask * 4), "the output");
    }
  }
});

// A weight that a later layer uses too crosses from rank to rank once a step,
// also when messages are predicted.
const RankProgramEntry kTiedWeight("tied weight", [](auto& world) {
  const auto model = nn::Sequential(testing::GiveWeight(), nn::Identity(),
                                    testing::TakeWeight());
  DistributedPipeline pipeline(model, testing::on_cpu({1, 1, 1}), world);
  for (int step = 0; step < 5; ++step) {
    const Tensor x = torch::ones({8, 3});
    const StepResult result = pipeline->train_step(
        x, x, [](const Tensor& y, const Tensor&) { return y.sum(1).mean(); },
        one_forward_one_backward(3, 4),
        TrainOptions().timeline(true).outputs(true));
    double bytes = 0;
    for (const auto& each : result.timeline->transfers) {
      if (each.action.kind == ActionKind::kForward) bytes += each.bytes;
    }
    // Between neighbours 4 micro-batches of 2 x 3 floats, and from the first
    // rank to the last the weight of 3 x 3 floats.
    const bool inner = world->rank() == 1;
    check(bytes == (inner ? 2 * 96 : 96 + 36),
          std::to_string(bytes) + " bytes in step " + std::to_string(step));
    if (pipeline->layout().has_last()) {
      check(result.output().equal(torch::full({8, 3}, 9.f)), "the output");
    }
  }
  // The gradients of all micro-batches come back: 5 steps, in which both
  // products give 3.
  if (pipeline->layout().has_first()) {
    check(pipeline->parameters()[0].grad().equal(torch::full({3, 3}, 30.f)),
          "the gradient");
  }
});

// forward() of a split batch gives one output for each part, on the last rank.
const RankProgramEntry kForward("forward", [](auto& world) {
  Setting setting;
  setting.schedule = forward_only(world->size(), 3);
  DistributedPipeline pipeline =
      pipeline_for(world, testing::token_model(), setting, 1);
  const Sequences batch = testing::sequences({4, 9, 1}, 6);
  const auto output =
      pipeline->forward(parts_if(pipeline->layout().has_first(), batch.tokens));
  check(output.has_value() == pipeline->layout().has_last(), "the last rank");
  if (output) {
    nn::Sequential plain = testing::token_model();
    for (std::size_t i = 0; i < 3; ++i) {
      check(output->parts.at(i).equal(plain->forward(batch.tokens[i])),
            "part " + std::to_string(i));
    }
  }
  const StepResult result = pipeline->evaluate(
      parts_if(pipeline->layout().has_first(), batch.tokens),
      parts_if(pipeline->layout().has_last(), batch.targets), token_loss);
  check(result.losses.size() == 3, "the losses");
});

// The loss of the first micro-batch is a float, that of the second a bfloat16.
const RankProgramEntry kTwoTypes("two types", [](auto& world) {
  const auto make = [] {
    torch::manual_seed(1);
    return nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 3));
  };
  DistributedPipeline pipeline(make(), testing::on_cpu({1, 1}), world);
  GPipe reference(make(), testing::on_cpu({1, 1}, 2));
  const auto loss = [](const Tensor& output, const Tensor& target) {
    const Tensor mean = torch::mse_loss(output, target);
    return output.size(0) == 3 ? mean : mean.to(torch::kBFloat16);
  };
  const Tensor input = torch::ones({5, 4}), target = torch::zeros({5, 3});
  const auto schedule = fill_drain(2, 2);
  const auto found = pipeline->train_step(input, target, loss, schedule);
  const auto expected = reference->train_step(input, target, loss, schedule);
  check(found.losses.size() == 2, "the number of losses");
  for (std::size_t k = 0; k < 2; ++k) {
    const std::string name = "loss " + std::to_string(k);
    check(found.losses[k].scalar_type() == expected.losses[k].scalar_type(),
          name + ": dtype");
    check(found.losses[k].equal(expected.losses[k]), name);
  }
});

TEST(Batches, LossesOfMicrobatchesKeepTheirDtypesOnAllRanks) {
  expect_ok("two types", 2);
}

TEST(Batches, OfAReplicaMayHaveNoRows) {
  for (const int ranks : {2, 4}) expect_ok("no_rows", ranks);
}

TEST(Batches, WeightedLossesHaveTheBitsOfOneProcess) {
  for (const int size : {1, 2, 4}) expect_ok("processes", size);
}

TEST(Batches, InBFloat16WeightedLossesHaveTheBitsOfOneProcess) {
  expect_ok("bfloat16", 2);
}

TEST(Batches, WeightedLossesOfReplicasAreThoseOfOnePlainStep) {
  for (const int size : {2, 4, 8}) expect_ok("replicas", size);
}

TEST(Batches, ATotalWeightOfZeroIsAnErrorOnAllRanksAndTheWorldGoesOn) {
  expect_ok("no weight", 4);
}

TEST(Batches, ARefusedStepDrawsNoRandomNumbers) { expect_ok("no draw", 2); }

TEST(Batches, OfOneReplicaMayBePartsAndOfAnotherOneValue) {
  expect_ok("two forms", 4);
}

TEST(Batches, MeansOfPartsCountByTheRowsOfTheTargets) {
  for (const int size : {2, 4}) expect_ok("means", size);
}

TEST(Batches, ATiedWeightCrossesOnceAStep) { expect_ok("tied weight", 3); }

TEST(Batches, AnUnsplitMaskCrossesEachBoundaryOnceAStep) {
  expect_ok("unsplit", 3);
}

TEST(Batches, ForwardGivesAnOutputForEachPart) { expect_ok("forward", 2); }

}  // namespace
}  // namespace gpipe
