// A pipeline of processes gives the same bits as a pipeline of threads.
//
// Each rank trains its part, and beside it the whole model in a GPipe, and
// compares.
#include "gpipe/distributed/pipeline.h"

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>
#include <iostream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/distributed/testing/comparison.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/models.h"
#include "gpipe/testing/process.h"

namespace gpipe {
namespace {

using testing::argument;
using testing::check;
using testing::check_same_state;
using testing::cut;
using testing::expect_ok;
using testing::make;
using testing::mean_square;
using testing::optimizer_of;
using testing::RankProgramEntry;
using testing::Setting;
using testing::settings;
using testing::Subject;
using testing::train;
using testing::with_rows;
using testing::world_options;
using torch::Tensor;
namespace nn = torch::nn;

// Layers with a tuple between them that contains a mask. The mask has no
// gradient.
struct WithMaskImpl : nn::Module {
  std::tuple<Tensor, Tensor> forward(Tensor x) { return {x, x.gt(0)}; }
};
TORCH_MODULE(WithMask);
struct ApplyMaskImpl : nn::Module {
  ApplyMaskImpl() : linear(register_module("linear", nn::Linear(6, 6))) {}
  std::tuple<Tensor, Tensor> forward(std::tuple<Tensor, Tensor> value) {
    const auto& [x, mask] = value;
    return {linear->forward(x) * mask, mask};
  }
  nn::Linear linear;
};
TORCH_MODULE(ApplyMask);
struct SplitImpl : nn::Module {
  std::vector<Tensor> forward(std::tuple<Tensor, Tensor> value) {
    const auto& [x, mask] = value;
    std::vector<Tensor> all{x.sin(), Tensor(), mask.to(torch::kLong),
                            x.t().contiguous().t()};
    // More specs than fit into the header of a message.
    while (all.size() < 32) all.push_back(x / static_cast<double>(all.size()));
    return all;
  }
};
TORCH_MODULE(Split);
struct JoinImpl : nn::Module {
  Tensor forward(std::vector<Tensor> x) {
    Tensor sum = x[0] + x[2] + x[3] + (x[1].defined() ? x[1] : x[0]);
    for (std::size_t k = 4; k < x.size(); ++k) sum = sum + x[k].cos();
    return sum;
  }
};
TORCH_MODULE(Join);

nn::Sequential value_model() {
  nn::Sequential model(nn::Linear(6, 6), WithMask(), ApplyMask(), ApplyMask(),
                       Split(), Join(), nn::Linear(6, 3));
  model->to(torch::kDouble);
  return model;
}

Subject subject_of(const std::string& name) {
  if (name == "values") return {value_model, {6}, {3}};
  return testing::subjects().at(name);
}

const RankProgramEntry kSchedules("schedules", [](auto& world) {
  for (auto& [name, setting] : settings(world->size(), 6, {1, 4, 6})) {
    const bool largest = num_microbatches(setting.schedule) == 6;
    const auto steps = static_cast<int>(largest ? testing::rounds(5, 20) : 2);
    train(world, subject_of(argument("model")), setting, steps, name);
  }
});

const RankProgramEntry kModes("modes", [](auto& world) {
  for (const char* const model : {"conv", "skip", "values"}) {
    for (const Checkpoint mode :
         {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
      for (const bool other : {false, true}) {
        Setting setting;
        setting.schedule = one_forward_one_backward(world->size(), 4);
        setting.mode = mode;
        setting.deferred = setting.fixed_order = setting.built = other;
        train(world, subject_of(model), setting, 3,
              std::string(model) + ", " + to_string(mode));
      }
    }
  }
});

// Returns the modes of all modules of this rank.
std::vector<bool> modes_of(const nn::Module& module) {
  std::vector<bool> modes;
  for (const auto& each : module.modules()) {
    modes.push_back(each->is_training());
  }
  return modes;
}

const RankProgramEntry kForward("forward", [](auto& world) {
  nn::Sequential layers = make(subject_of("conv"));
  nn::Sequential plain = make(subject_of("conv"));
  DistributedPipeline pipeline(
      layers, testing::on_cpu(cut(layers->size(), 2)).chunks(3), world);
  for (const int64_t rows : {7, 2, 6}) {  // the second: fewer micro-batches
    torch::manual_seed(rows);
    const Tensor input = torch::randn({rows, 3, 8, 8}, torch::kDouble);
    const Tensor target = torch::randn({rows, 5}, torch::kDouble);
    const bool first = pipeline->layout().has_first();
    const bool last = pipeline->layout().has_last();
    plain->eval();
    const torch::NoGradGuard no_grad;
    std::vector<Tensor> outputs;
    Tensor loss;
    const auto targets = target.chunk(3);
    for (const Tensor& piece : input.chunk(3)) {
      outputs.push_back(plain->forward(piece));
      const std::size_t i = outputs.size() - 1;
      const Tensor part = mean_square(outputs[i], targets[i]) *
                          (static_cast<double>(piece.size(0)) / rows);
      loss = loss.defined() ? loss + part : part;
    }
    // A layer of each rank is in evaluation mode, like a frozen BatchNorm.
    pipeline->children().front()->eval();
    const std::vector<bool> modes = modes_of(*pipeline);
    check(modes[0] && !modes[1] && modes[2], "modes before");
    const StepResult result = pipeline->evaluate(
        first ? input : Tensor(), last ? target : Tensor(), mean_square);
    check(modes_of(*pipeline) == modes, "modes after");
    check(result.loss.equal(loss), "loss of " + std::to_string(rows));
    pipeline->eval();
    const auto output = pipeline->forward(first ? input : Tensor());
    pipeline->train();
    check(output.has_value() == last, "where the output is");
    if (last) check(output->equal(torch::cat(outputs)), "output");
  }
});

// Replica d trains on the d-th part of the rows. One process computes the same
// alone and adds the replicas' gradients in the same order.
const RankProgramEntry kReplicas("replicas", [](auto& world) {
  const int replicas = std::stoi(argument("replicas"));
  const int ranks = world->size() / replicas;
  const Schedule schedule = one_forward_one_backward(ranks, 2);
  for (const char* const name : {"conv", "linear"}) {
    const Subject model = subject_of(name);
    nn::Sequential layers = make(model);
    nn::Sequential plain = make(model);
    DistributedPipeline pipeline(
        layers,
        testing::on_cpu(cut(layers->size(), ranks)).data_parallel(replicas),
        world);
    GPipe reference(plain, testing::on_cpu(cut(plain->size(), ranks), ranks));
    auto optimizer = optimizer_of(pipeline);
    auto reference_optimizer = optimizer_of(reference);
    for (int step = 0; step < 3; ++step) {
      torch::manual_seed(50 + step);
      // The replicas have different numbers of rows.
      std::vector<Tensor> inputs, targets;
      int64_t all = 0;
      for (int d = 0; d < replicas; ++d) {
        const int64_t rows = 4 + 2 * d;
        all += rows;
        inputs.push_back(
            torch::randn(with_rows(rows, model.input), torch::kDouble));
        targets.push_back(
            torch::randn(with_rows(rows, model.target), torch::kDouble));
      }
      torch::manual_seed(7);
      optimizer.zero_grad();
      const int d = pipeline->layout().replica;
      const StepResult result =
          pipeline->train_step(inputs[d], targets[d], mean_square, schedule);
      pipeline->clip_grad_norm_(0.5);
      optimizer.step();
      if (std::string(name) == "conv") continue;  // has dropout

      reference_optimizer.zero_grad();
      Tensor loss;
      std::vector<Tensor> sums(reference->parameters().size());
      for (int r = 0; r < replicas; ++r) {
        reference->zero_grad();
        const double part = static_cast<double>(inputs[r].size(0)) / all;
        const StepResult mine = reference->train_step(
            inputs[r], targets[r],
            [&](const Tensor& output, const Tensor& target) {
              return mean_square(output, target);
            },
            schedule);
        const Tensor share = mine.loss * part;
        loss = loss.defined() ? loss + share : share;
        for (std::size_t k = 0; k < sums.size(); ++k) {
          const Tensor grad = reference->parameters()[k].grad() * part;
          sums[k] = sums[k].defined() ? sums[k] + grad : grad;
        }
      }
      for (std::size_t k = 0; k < sums.size(); ++k) {
        reference->parameters()[k].mutable_grad() = sums[k];
      }
      nn::utils::clip_grad_norm_(reference->parameters(), 0.5);
      reference_optimizer.step();
      check((result.loss - loss).abs().item<double>() < 1e-14, "loss");
      const auto parameters = reference->named_parameters();
      for (const auto& each : pipeline->named_parameters()) {
        check(
            (each.value() - parameters[each.key()]).abs().max().item<double>() <
                1e-14,
            each.key());
      }
    }
    // True on one rank after the other, then on none.
    for (int who = 0; who <= world->size(); ++who) {
      check(pipeline->any(world->rank() == who) == (who < world->size()),
            "any");
    }
    // The parameters of the replicas must have stayed equal, bit by bit.
    Tensor sum = torch::zeros({}, torch::kDouble);
    for (const Tensor& each : pipeline->parameters()) {
      sum += (each.detach() * 1e3).sin().sum();
    }
    std::cout << name << " " << pipeline->layout().rank << " " << std::hexfloat
              << sum.item<double>() << std::endl;
  }
});

// Hooks are called after the step, so they may call any().
const RankProgramEntry kHook("hook", [](auto& world) {
  const nn::Sequential layers{nn::Linear(4, 4), nn::Linear(4, 4)};
  DistributedPipeline pipeline(
      layers, DistributedOptions({1, 1}).device(torch::kCPU), world);
  int calls = 0;
  pipeline->parameters()[0].register_hook([&](Tensor grad) {
    check(pipeline->any(world->rank() == 1), "any");
    ++calls;
    return grad;
  });
  pipeline->train_step(torch::ones({4, 4}), torch::ones({4, 4}), mean_square,
                       one_forward_one_backward(2, 2));
  check(calls == 1, "calls");
});

// One stage of a rank captures a parameter of the rank's other stage, in two
// replicas that get the same rows.
const RankProgramEntry kCapturedTwice("captured_twice", [](auto& world) {
  const auto placed = place_stages(4, 2, Placement::kV);
  for (const Schedule& schedule :
       {breadth_first(placed, 3), zero_bubble_v(2, 4)}) {
    for (const bool first : {true, false}) {
      const auto make_layers = [&] {
        torch::manual_seed(3);
        nn::Linear owner(4, 4);
        const auto user = testing::layer([weight = owner->weight](Tensor x) {
          return x.matmul(weight.t()).tanh();
        });
        nn::Sequential layers;
        if (first) layers->push_back(owner);
        if (!first) layers->push_back(user);
        layers->push_back(nn::Linear(4, 4));
        layers->push_back(nn::Linear(4, 4));
        if (first) layers->push_back(user);
        if (!first) layers->push_back(owner);
        layers->to(torch::kDouble);
        return layers;
      };
      const nn::Sequential layers = make_layers(), plain = make_layers();
      DistributedPipeline pipeline(layers,
                                   testing::on_cpu({1, 1, 1, 1})
                                       .stages_per_rank(2)
                                       .placement(Placement::kV)
                                       .data_parallel(2),
                                   world);
      GPipe reference(plain, testing::on_cpu({1, 1, 1, 1}, 2)
                                 .stages_per_rank(2)
                                 .placement(Placement::kV));
      const Tensor input = torch::randn({12, 4}, torch::kDouble);
      const Tensor target = torch::randn({12, 4}, torch::kDouble);
      for (int step = 0; step < 3; ++step) {
        pipeline->train_step(input, target, mean_square, schedule);
        reference->train_step(input, target, mean_square, schedule);
        check_same_state(*pipeline, *reference, "step " + std::to_string(step));
      }
    }
  }
});

// Replicas whose weights and buffers differ train as the first one does.
const RankProgramEntry kOtherWeights("other_weights", [](auto& world) {
  const auto make_layers = [](int seed) {
    torch::manual_seed(seed);
    nn::Sequential layers{nn::Linear(4, 4), nn::BatchNorm1d(4),
                          nn::Linear(4, 4)};
    for (const Tensor& each : layers->buffers()) each.fill_(seed);
    layers->to(torch::kDouble);
    return layers;
  };
  for (const bool shard : {false, true}) {
    DistributedPipeline pipeline(
        make_layers(world->rank() + 1),
        testing::on_cpu({2, 1}).data_parallel(2).shard_optimizer(shard), world);
    // Replica 0 is the ranks 0 and 1, which have the first and the other
    // layers.
    const nn::Sequential first = make_layers(1), second = make_layers(2);
    const auto compare = [&](const auto& own, const auto& a, const auto& b) {
      for (const auto& each : own) {
        const bool is_first = each.key().front() < '2';
        check(each.value().equal((is_first ? a : b)[each.key()]), each.key());
      }
    };
    compare(pipeline->named_parameters(), first->named_parameters(),
            second->named_parameters());
    compare(pipeline->named_buffers(), first->named_buffers(),
            second->named_buffers());
  }
});

int threads_of_a_new_thread() {
  int threads = 0;
  std::thread([&] { threads = torch::get_num_threads(); }).join();
  return threads;
}

const RankProgramEntry kThreads("threads", [] {
  const auto world = World::connect(world_options());
  torch::set_num_threads(3);
  check(threads_of_a_new_thread() == 3, "before");
  DistributedPipeline pipeline(
      nn::Sequential(nn::Linear(2, 2)),
      DistributedOptions({1}).data_parallel(2).device(torch::kCPU).threads(2),
      world);
  check(torch::get_num_threads() == 3, "of this thread");
  check(threads_of_a_new_thread() == 3, "of a thread to come");
  return 0;
});

// Four threads of each rank evaluate the same batch.
const RankProgramEntry kManyCallers("many callers", [] {
  const auto world = World::connect(world_options());
  torch::manual_seed(1);
  const Tensor x = torch::randn({6, 4}, torch::kDouble);
  nn::Sequential layers(nn::Linear(4, 4), nn::Linear(4, 4));
  layers->to(torch::kDouble);
  DistributedPipeline pipeline(layers, testing::on_cpu({1, 1}).chunks(3),
                               world);
  for (const bool evaluate : {true, false}) {
    const auto call = [&] {
      if (evaluate) return pipeline->evaluate(x, x, mean_square).loss;
      return pipeline->forward(x).value_or(x);
    };
    const Tensor once = call();
    std::atomic<int> other = 0;
    std::vector<std::thread> callers;
    for (int k = 0; k < 4; ++k) {
      callers.emplace_back([&] {
        for (int n = 0; n < 10; ++n) other += !call().equal(once);
      });
    }
    for (std::thread& each : callers) each.join();
    check(other == 0, "another result");
  }
  return 0;
});

// A layer that uses the weight of another layer of the pipeline.
struct UsesImpl : nn::Module {
  explicit UsesImpl(nn::Linear shared)
      : shared(register_module("shared", std::move(shared))) {}
  Tensor forward(Tensor x) { return shared->forward(x); }
  nn::Linear shared;
};
TORCH_MODULE(Uses);

const RankProgramEntry kSharedParameter("shared_parameter", [](auto& world) {
  torch::manual_seed(1);
  const nn::Linear shared(3, 3);
  const nn::Sequential layers{Uses(shared), Uses(shared)};
  DistributedPipeline pipeline(
      layers, DistributedOptions({2}).device(torch::kCPU), world);
  pipeline->train_step(torch::ones({4, 3}), torch::zeros({4, 3}), mean_square,
                       one_forward_one_backward(1, 2));
  std::vector<Tensor> once, grads;
  for (const Tensor& each : shared->parameters()) {
    once.push_back(torch::zeros_like(each));
    once.back().mutable_grad() = each.grad().clone();
    grads.push_back(each.grad());
  }
  check(
      pipeline->clip_grad_norm_(0.01) == nn::utils::clip_grad_norm_(once, 0.01),
      "norm");
  for (std::size_t k = 0; k < once.size(); ++k) {
    check(grads[k].equal(once[k].grad()), "gradient");
  }
});

const RankProgramEntry kLayers("layers", [](auto& world) {
  nn::Sequential layers;
  for (int k = 0; k < 4; ++k) layers->push_back(nn::Linear(2, 2));
  const DistributedPipeline pipeline(layers,
                                     DistributedOptions({1, 1, 1, 1})
                                         .stages_per_rank(2)
                                         .placement(Placement::kV)
                                         .device(torch::kCPU),
                                     world);
  check(pipeline->size() == 4, "size");
  // Rank 0 has the layers 0 and 3, rank 1 has 1 and 2.
  const bool outer = world->rank() == 0;
  for (int k = 0; k < 4; ++k) {
    const bool here = (k == 0 || k == 3) == outer;
    const auto expected = here ? layers->ptr(k) : nullptr;
    check((*pipeline)[k] == expected, "layer " + std::to_string(k));
    check((*pipeline)[k - 4] == expected, "from the end");
  }
  std::vector<nn::Module*> local;
  for (const nn::AnyModule& each : *pipeline) local.push_back(each.ptr().get());
  check(local == std::vector<nn::Module*>{layers->ptr(outer ? 0 : 1).get(),
                                          layers->ptr(outer ? 3 : 2).get()},
        "iteration");
});

class Schedules
    : public ::testing::TestWithParam<std::tuple<int, std::string>> {};

TEST_P(Schedules, GiveTheBitsOfOneProcess) {
  const auto [ranks, model] = GetParam();
  expect_ok("schedules", ranks, {{"model", model}});
}

INSTANTIATE_TEST_SUITE_P(DistributedPipeline, Schedules,
                         ::testing::Combine(::testing::Values(2, 4),
                                            ::testing::Values("conv", "skip",
                                                              "values")),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) +
                                  "Ranks" + std::get<1>(info.param);
                         });

TEST(DistributedPipeline, AlonePipesWithinItself) {
  expect_ok("schedules", 1, {{"model", "skip"}});
}

TEST(DistributedPipeline,
     ModesBuildersAndDeferredNormsGiveTheBitsOfOneProcess) {
  expect_ok("modes", 3);
}

TEST(DistributedPipeline, ForwardAndEvaluateGiveTheBitsOfThePlainModel) {
  expect_ok("forward", 2);
}

TEST(DistributedPipeline, ClipsAParameterOfSeveralLayersOnce) {
  expect_ok("shared_parameter", 1);
}

TEST(DistributedPipeline, ReplicasAddUpWhatAnotherStageOfTheRankHasCaptured) {
  expect_ok("captured_twice", 4);
}

TEST(DistributedPipeline, ReplicasBeginWithTheWeightsOfTheFirst) {
  expect_ok("other_weights", 4);
}

TEST(DistributedPipeline, ShowsTheLayersOfThisProcess) {
  expect_ok("layers", 2);
}

TEST(DistributedPipeline, LeavesTheThreadsOfOthersAlone) {
  expect_ok("threads", 2);
}

TEST(DistributedPipeline, ManyThreadsMayEvaluate) {
  expect_ok("many callers", 2);
}

TEST(DistributedPipeline, MayBeCalledByAHook) { expect_ok("hook", 2); }

TEST(DistributedPipeline, ReplicasAddUpTheirGradientsAndStayEqual) {
  for (const auto& [replicas, ranks] :
       std::vector<std::pair<int, int>>{{2, 2}, {2, 4}, {3, 3}}) {
    const auto results =
        expect_ok("replicas", ranks, {{"replicas", std::to_string(replicas)}});
    const int per_replica = ranks / replicas;
    for (int rank = per_replica; rank < ranks; ++rank) {
      EXPECT_EQ(results[rank].out, results[rank % per_replica].out);
    }
  }
}

}  // namespace
}  // namespace gpipe
