// Optimizers that are spread over replicas leave the bits of those that are
// not.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <csignal>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/distributed/error.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/testing/comparison.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/schedule.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"
#include "training/grad_scaler.h"

namespace gpipe {
namespace {

using testing::argument;
using testing::check;
using testing::expect_ok;
using testing::mean_square;
using testing::RankProgramEntry;
using testing::Ranks;
using testing::world_options;
using torch::Tensor;
namespace nn = torch::nn;
namespace optim = torch::optim;

using Tensors = std::vector<Tensor>;
using Maker = std::function<std::unique_ptr<optim::Optimizer>(const Tensors&)>;

const std::map<std::string, Maker>& optimizers() {
  static const auto* const all = new std::map<std::string, Maker>{
      {"SGD",
       [](const Tensors& all) {
         return std::make_unique<optim::SGD>(
             all, optim::SGDOptions(1e-3).momentum(0.9).weight_decay(0.01));
       }},
      {"Adam",
       [](const Tensors& all) {
         return std::make_unique<optim::Adam>(
             all, optim::AdamOptions().amsgrad(true));
       }},
      {"AdamW",
       [](const Tensors& all) { return std::make_unique<optim::AdamW>(all); }},
      {"RMSprop",
       [](const Tensors& all) {
         return std::make_unique<optim::RMSprop>(
             all, optim::RMSpropOptions(0.01).momentum(0.5));
       }},
      {"Adagrad", [](const Tensors& all) {
         return std::make_unique<optim::Adagrad>(all);
       }}};
  return *all;
}

// Parameters of 1, 3 and more rows, with one that is frozen.
nn::Sequential model() {
  torch::manual_seed(3);
  nn::Sequential layers(nn::Linear(4, 7),
                        nn::LayerNorm(nn::LayerNormOptions({7})),
                        nn::Linear(7, 3), nn::Linear(3, 1));
  layers->to(torch::kDouble);
  layers->parameters()[1].requires_grad_(false);
  return layers;
}

DistributedPipeline pipeline_of(const std::shared_ptr<World>& world,
                                bool sharded) {
  const int replicas = std::stoi(argument("replicas"));
  const auto balance = world->size() / replicas == 2
                           ? std::vector<int64_t>{2, 2}
                           : std::vector<int64_t>{4};
  return DistributedPipeline(
      model(),
      testing::on_cpu(balance).data_parallel(replicas).shard_optimizer(sharded),
      world);
}

int64_t numel(const Tensors& tensors) {
  int64_t sum = 0;
  for (const Tensor& each : tensors) sum += each.numel();
  return sum;
}

// Returns the bytes of an AdamW optimizer's state.
int64_t state_bytes(const optim::Optimizer& optimizer) {
  int64_t bytes = 0;
  for (const auto& [parameter, state] : optimizer.state()) {
    const auto& adam = static_cast<const optim::AdamWParamState&>(*state);
    for (const Tensor& each : {adam.exp_avg(), adam.exp_avg_sq()}) {
      bytes += static_cast<int64_t>(each.nbytes());
    }
  }
  return bytes;
}

const RankProgramEntry kTrain("train", [](auto& world) {
  for (const auto& [name, make] : optimizers()) {
    DistributedPipeline whole = pipeline_of(world, false);
    DistributedPipeline sharded = pipeline_of(world, true);
    const auto schedule =
        one_forward_one_backward(static_cast<int>(whole->balance().size()), 3);
    const Tensors shards = sharded->optimizer_parameters();
    auto optimizer = make(whole->optimizer_parameters());
    auto shard_optimizer = make(shards);
    const int steps = std::stoi(argument("steps"));
    for (int step = 0; step < steps; ++step) {
      torch::manual_seed(10 * step + whole->layout().replica);
      const Tensor input = torch::randn({6, 4}, torch::kDouble);
      const Tensor target = torch::randn({6, 1}, torch::kDouble);
      for (auto* const each : {&whole, &sharded}) {
        auto& owner = each == &whole ? optimizer : shard_optimizer;
        owner->zero_grad();
        // Gradients of two steps add up.
        for (int k = 0; k < 2; ++k) {
          (*each)->train_step(input * (k + 1), target, mean_square, schedule);
        }
        const double norm = (*each)->clip_grad_norm_(1e9);
        // Clipping would multiply by a norm of shards, whose last bits differ.
        check(norm > 0 && norm < 1e9, "the norm");
        owner->step();
        (*each)->share_parameters();
      }
      const auto expected = whole->named_parameters();
      for (const auto& each : sharded->named_parameters()) {
        check(each.value().equal(expected[each.key()]),
              name + ", step " + std::to_string(step) + ": " + each.key());
        check(!each.value().grad().defined(), "a gradient of " + each.key());
      }
    }
    // A replica has about its share, at most one row of each parameter more.
    const int replicas = std::stoi(argument("replicas"));
    constexpr int64_t kRows = 7 * 6;  // elements
    check(numel(shards) <= numel(sharded->parameters()) / replicas + kRows,
          "the share of a replica");
    if (name == "AdamW") {
      constexpr int64_t kStates = 2;
      check(state_bytes(*shard_optimizer) <=
                state_bytes(*optimizer) / replicas + kStates * 8 * kRows,
            "the bytes of a replica's optimizer");
    }
  }
});

const RankProgramEntry kClip("clip", [](auto& world) {
  DistributedPipeline whole = pipeline_of(world, false);
  DistributedPipeline sharded = pipeline_of(world, true);
  const auto schedule =
      one_forward_one_backward(static_cast<int>(whole->balance().size()), 3);
  torch::manual_seed(whole->layout().replica);
  const Tensor input = torch::randn({6, 4}, torch::kDouble);
  for (auto* const each : {&whole, &sharded}) {
    (*each)->train_step(input, torch::ones({6, 1}, torch::kDouble), mean_square,
                        schedule);
  }
  const double expected = whole->clip_grad_norm_(0.01);
  const double norm = sharded->clip_grad_norm_(0.01);
  check(std::abs(norm - expected) <= 1e-14 * expected, "the norm");
  check(norm > 0.02, "clipping has something to do");
  const double clipped = whole->clip_grad_norm_(1e9);
  check(std::abs(sharded->clip_grad_norm_(1e9) - clipped) <= 1e-12 * clipped,
        "the gradients are scaled");
  check(testing::error_of([&] { sharded->clip_grad_norm_(1, 0); }) ==
            "c10::ValueError: clip_grad_norm_() with norm_type 0 counts the "
            "parameters, but with shard_optimizer each replica has parts of "
            "them; give another norm_type",
        "the norm of order 0");
  const int type = world->rank() == 0 ? 0 : 2;
  check(testing::error_of([&] { sharded->clip_grad_norm_(1, type); })
                .find("c10::ValueError: clip_grad_norm_() has max_norm 1 and "
                      "norm_type 0 on rank 0, but max_norm 1 and norm_type 2 "
                      "on rank 1") == 0,
        "norms of different orders");
  check(sharded->clip_grad_norm_(1) <= 0.0101, "the World is usable");
});

// Returns SGD with the weights in one group and the other parameters in a
// second one, with another learning rate.
std::unique_ptr<optim::SGD> in_two_groups(const Tensors& parameters) {
  std::vector<optim::OptimizerParamGroup> groups(
      2, optim::OptimizerParamGroup(Tensors()));
  for (const Tensor& each : parameters) {
    groups[each.dim() > 1 ? 0 : 1].params().push_back(each);
  }
  groups[0].set_options(std::make_unique<optim::SGDOptions>(1e-2));
  groups[1].set_options(std::make_unique<optim::SGDOptions>(1e-1));
  return std::make_unique<optim::SGD>(groups, optim::SGDOptions(1));
}

// In the second of four steps one replica has an infinite input, and all skip
// the step.
const RankProgramEntry kScale("scale", [] {
  const auto world = World::connect(world_options());
  torch::set_num_threads(1);
  DistributedPipeline whole = pipeline_of(world, false);
  DistributedPipeline sharded = pipeline_of(world, true);
  const auto schedule =
      one_forward_one_backward(static_cast<int>(whole->balance().size()), 3);
  const auto train = [&](DistributedPipeline& pipeline) {
    const auto optimizer = in_two_groups(pipeline->optimizer_parameters());
    GradScaler scaler(GradScalerOptions().init_scale(1024).any(
        [&](bool here) { return pipeline->any(here); }));
    for (int step = 0; step < 4; ++step) {
      torch::manual_seed(10 * step + pipeline->layout().replica);
      Tensor input = torch::randn({6, 4}, torch::kDouble);
      const bool overflows = step == 1 && pipeline->layout().replica == 1;
      if (overflows) input.fill_(std::numeric_limits<double>::infinity());
      optimizer->zero_grad();
      pipeline->train_step(input, torch::ones({6, 1}, torch::kDouble),
                           scaler.scaled(mean_square), schedule,
                           TrainOptions().check_finite(step != 1));
      const bool stepped = scaler.step(*optimizer);
      check(stepped == (step != 1), "a step is skipped");
      scaler.update();
      pipeline->share_parameters();
    }
    check(scaler.scale() == 512, "the scale");
  };
  train(whole);
  train(sharded);
  const auto expected = whole->named_parameters();
  for (const auto& each : sharded->named_parameters()) {
    check(each.value().equal(expected[each.key()]), each.key());
  }
  // A gradient that is not finite is an error on all ranks.
  const double bad = sharded->layout().replica == 1 ? NAN : 1.0;
  const std::string error = testing::error_of([&] {
    sharded->train_step(torch::full({6, 4}, bad, torch::kDouble),
                        torch::ones({6, 1}, torch::kDouble), mean_square,
                        schedule, TrainOptions().check_finite(true));
  });
  check(error.find("NonFiniteError") != std::string::npos ||
            error.find("PeerError") != std::string::npos,
        error);
  return 0;
});

// Ends one rank after its step, before it gives its shards to the others.
const RankProgramEntry kDie("die", [] {
  const auto world = World::connect(world_options());
  torch::set_num_threads(1);
  DistributedPipeline pipeline = pipeline_of(world, true);
  const auto optimizer =
      optimizers().at("AdamW")(pipeline->optimizer_parameters());
  for (int step = 0; step < 3; ++step) {
    optimizer->zero_grad();
    // A rank may still be at the end of the step when rank 1 has left it.
    try {
      pipeline->train_step(torch::ones({6, 4}, torch::kDouble),
                           torch::ones({6, 1}, torch::kDouble), mean_square,
                           one_forward_one_backward(1, 3));
      optimizer->step();
      if (step == 1 && world->rank() == 1) raise(SIGKILL);
      pipeline->share_parameters();
    } catch (const PeerError& error) {
      check(step == 1, "the step of the failure");
      check(error.failure().rank == 1, "the rank that failed");
      return 0;
    }
  }
  return 2;
});

// A layer whose parameter is there from its first forward on.
struct LateImpl : nn::Module {
  Tensor forward(Tensor x) {
    if (!scale.defined()) {
      scale = register_parameter("scale", torch::full({3}, 2, x.options()));
    }
    return x * scale;
  }
  Tensor scale;
};
TORCH_MODULE(Late);

// Layers are unfrozen, and a parameter is registered, after the pipeline was
// made. Gradients are cleared by the module.
const RankProgramEntry kLater("later", [](auto& world) {
  const auto make = [] {
    torch::manual_seed(3);
    nn::Sequential layers(nn::Linear(4, 3), Late(), nn::Linear(3, 2));
    layers->to(torch::kDouble);
    for (Tensor& each : layers[0]->parameters()) each.requires_grad_(false);
    return layers;
  };
  const auto pipeline_with = [&](bool sharded) {
    DistributedPipeline pipeline(make(),
                                 testing::on_cpu({3})
                                     .data_parallel(world->size())
                                     .shard_optimizer(sharded),
                                 world);
    const auto train = [&](int step) {
      torch::manual_seed(10 * step + world->rank());
      const Tensor x = torch::randn({4, 4}, torch::kDouble);
      pipeline->zero_grad();
      pipeline->train_step(x, x.narrow(1, 0, 2), mean_square, fill_drain(1, 2));
    };
    for (int step = 0; step < 2; ++step) train(step);
    for (Tensor& each : pipeline->parameters()) each.requires_grad_(true);
    const Tensors parameters = pipeline->optimizer_parameters();
    // With fewer rows than replicas, one of them owns a bias of 2.
    check(sharded || parameters.size() == 5, "the number of parameters");
    optim::SGD optimizer(parameters, optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 2; step < 5; ++step) {
      train(step);
      const double norm = pipeline->clip_grad_norm_(1e9);
      double squares = 0;  // of all gradients, or of those of this replica
      for (const Tensor& each : parameters) {
        squares += each.grad().pow(2).sum().item<double>();
      }
      check(sharded ? squares < norm * norm
                    : std::abs(squares - norm * norm) < 1e-12 * squares,
            "the norm has all parameters");
      optimizer.step();
      pipeline->share_parameters();
    }
    return pipeline;
  };
  DistributedPipeline whole = pipeline_with(false);
  DistributedPipeline sharded = pipeline_with(true);
  const auto begin = make()->named_parameters();
  const auto expected = whole->named_parameters();
  check(expected.size() == 5, "all parameters");
  for (const auto& each : sharded->named_parameters()) {
    check(each.value().equal(expected[each.key()]), each.key());
    if (const Tensor* const old = begin.find(each.key())) {
      check(!each.value().equal(*old), each.key() + " has trained");
    }
  }
  check(!expected["1.scale"].equal(torch::full({3}, 2, torch::kDouble)),
        "1.scale has trained");
});

// An optimizer also moves a parameter that is frozen and has a gradient.
const RankProgramEntry kFreeze("freeze", [](auto& world) {
  const auto weights_after = [&](bool sharded) {
    DistributedPipeline pipeline = pipeline_of(world, sharded);
    const auto optimizer =
        optimizers().at("SGD")(pipeline->optimizer_parameters());
    for (int step = 0; step < 3; ++step) {
      torch::manual_seed(10 * step + world->rank());
      optimizer->zero_grad(/*set_to_none=*/false);
      pipeline->train_step(torch::randn({6, 4}, torch::kDouble),
                           torch::ones({6, 1}, torch::kDouble), mean_square,
                           fill_drain(1, 3));
      optimizer->step();
      pipeline->share_parameters();
      if (step > 0) continue;
      for (Tensor& each : pipeline->parameters()) {
        if (each.size(0) == 7) each.requires_grad_(false);
      }
    }
    Tensors weights;
    for (const Tensor& each : pipeline->parameters()) {
      weights.push_back(each.detach().clone());
    }
    return weights;
  };
  const Tensors expected = weights_after(false), found = weights_after(true);
  for (std::size_t k = 0; k < expected.size(); ++k) {
    check(found[k].equal(expected[k]), "parameter " + std::to_string(k));
  }
});

TEST(ShardedOptimizer, MovesParametersThatAreFrozenLaterOnAllReplicas) {
  for (const char* const size : {"2", "3"}) {
    expect_ok("freeze", std::stoi(size), {{"replicas", size}});
  }
}

TEST(ShardedOptimizer, TakesParametersThatAreUnfrozenOrRegisteredLater) {
  for (const int size : {2, 3}) expect_ok("later", size);
}

TEST(ShardedOptimizer, LeavesTheBitsOfOneThatIsNotSharded) {
  const struct {
    int size;
    const char *replicas, *steps;
  } cases[] = {{2, "2", "100"}, {3, "3", "5"}, {4, "2", "5"}, {4, "4", "100"}};
  for (const auto& each : cases) {
    expect_ok("train", each.size,
              {{"replicas", each.replicas}, {"steps", each.steps}});
  }
}

TEST(ShardedOptimizer, ARankThatDiesBeforeItSharesIsNamedByAll) {
  const auto results = Ranks("die", 3, {{"replicas", "3"}}).wait();
  for (const int rank : {0, 2}) {
    EXPECT_TRUE(results[rank].exit.ok()) << results[rank].err;
  }
  EXPECT_EQ(results[1].exit.signal, SIGKILL);
}

TEST(ShardedOptimizer, WorksWithGroupsScaledLossesAndFiniteChecks) {
  for (const int size : {2, 4}) expect_ok("scale", size, {{"replicas", "2"}});
}

TEST(ShardedOptimizer, GradientsAreClippedByTheNormOfAllShards) {
  for (const int size : {2, 4}) expect_ok("clip", size, {{"replicas", "2"}});
}

}  // namespace
}  // namespace gpipe
