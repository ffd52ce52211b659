// Replicas whose data takes other ways through the model.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/schedule.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"

namespace gpipe {
namespace {

using testing::check;
using testing::error_of;
using testing::expect_all_ok;
using testing::mean_square;
using testing::RankProgramEntry;
using testing::Ranks;
using testing::world_options;
using torch::Tensor;
namespace nn = torch::nn;

DistributedOptions replicas_of(std::vector<int64_t> balance, int64_t replicas) {
  return DistributedOptions(std::move(balance))
      .data_parallel(replicas)
      .device(torch::Device(torch::kCPU))
      .threads(1);
}

// Two linear layers, of which each replica uses those of its route, in that
// order: "ab", "a" or "".
struct RoutedImpl : nn::Module {
  RoutedImpl(nn::Linear a, nn::Linear b, std::string route)
      : a(register_module("a", std::move(a))),
        b(register_module("b", std::move(b))),
        route(std::move(route)) {}
  Tensor forward(Tensor x) {
    for (const char each : route) {
      x = x + (each == 'a' ? a : b)->forward(x);
    }
    return x;
  }
  nn::Linear a, b;
  const std::string route;
};
TORCH_MODULE(Routed);

// Returns two layers, one for each stage, that share their modules. All numbers
// are small integers, so that sums are exact. The last layer has a parameter
// that every route uses.
nn::Sequential routed(const std::string& route) {
  torch::manual_seed(3);
  const auto options = nn::LinearOptions(4, 4).bias(false);
  const nn::Linear a(options), b(options);
  nn::Sequential layers(Routed(a, b, route), Routed(a, b, route));
  layers->push_back(nn::Linear(options));
  layers->to(torch::kDouble);
  const torch::NoGradGuard no_graph;
  for (Tensor& each : layers->parameters()) {
    each.copy_(torch::randint(-1, 2, {4, 4}, torch::kDouble));
  }
  return layers;
}

Tensor loss_of(const Tensor& output, const Tensor& target) {
  return (output * target).sum(1).mean();
}

// Two replicas of one rank with two stages.
const RankProgramEntry kRoutes("routes", [] {
  const auto world = World::connect(world_options());
  const int rank = world->rank();
  torch::set_num_threads(1);
  using Pair = std::pair<const char*, const char*>;
  for (const auto& [first, second] :
       {Pair{"a", "b"}, Pair{"ab", "ba"}, Pair{"ab", "a"}, Pair{"b", ""}}) {
    for (const bool sharded : {false, true}) {
      const std::string name = std::string(first) + " and " + second +
                               (sharded ? ", sharded, " : ", ");
      const nn::Sequential layers = routed(rank == 0 ? first : second);
      DistributedPipeline pipeline(
          layers,
          replicas_of({1, 2}, 2).stages_per_rank(2).shard_optimizer(sharded),
          world);
      torch::manual_seed(9);
      const Tensor x = torch::randint(-2, 3, {8, 4}, torch::kDouble);
      const Tensor y = torch::randint(-2, 3, {8, 4}, torch::kDouble);
      pipeline->train_step(x.narrow(0, 4 * rank, 4), y.narrow(0, 4 * rank, 4),
                           loss_of, named_schedule("looped-bfs", 1, 2, 2));
      std::vector<Tensor> expected(3);  // of a, b and the last layer
      for (const int replica : {0, 1}) {
        nn::Sequential plain = routed(replica == 0 ? first : second);
        (loss_of(plain->forward(x.narrow(0, 4 * replica, 4)),
                 y.narrow(0, 4 * replica, 4)) /
         2)
            .backward();
        const auto all = plain->parameters();  // a, b, a, b, last
        for (std::size_t k = 0; k < 3; ++k) {
          const Tensor grad = all[k == 2 ? 4 : k].grad();
          if (!grad.defined()) continue;
          expected[k] = expected[k].defined() ? expected[k] + grad : grad;
        }
      }
      const auto parameters = pipeline->optimizer_parameters();
      check(parameters.size() == 3, name + "the number of parameters");
      for (std::size_t k = 0; k < 3; ++k) {
        const Tensor grad = parameters[k].grad();
        const std::string what = name + "gradient " + std::to_string(k);
        check(grad.defined() == expected[k].defined(), what + " is defined");
        if (!grad.defined()) continue;
        check(grad.equal(sharded ? expected[k].narrow(0, 2 * rank, 2)
                                 : expected[k]),
              what);
      }
    }
  }
  return 0;
});

// Replicas that froze different layers of equal sizes.
const RankProgramEntry kFrozen("frozen", [] {
  const auto world = World::connect(world_options());
  torch::manual_seed(3);
  nn::Sequential layers(nn::Linear(4, 4), nn::Linear(4, 4));
  for (Tensor& each : layers[world->rank()]->parameters()) {
    each.requires_grad_(false);
  }
  DistributedPipeline pipeline(layers, replicas_of({2}, 2), world);
  const std::string error = error_of([&] {
    pipeline->train_step(torch::ones({4, 4}), torch::ones({4, 4}), mean_square,
                         fill_drain(1, 1));
  });
  check(error.find("the replicas have different gradients: number 0 is "
                   "'1.bias' (Float [4]) on rank 0, but '0.bias' (Float [4]) "
                   "on rank 1; give all replicas the same layers, and freeze "
                   "the same parameters in all of them") != std::string::npos,
        error);
  return 0;
});

TEST(Replicas, OfOtherRoutesAddUpTheGradientsOfEachParameter) {
  expect_all_ok(Ranks("routes", 2).wait());
}

TEST(Replicas, ThatFrozeOtherLayersAreAnErrorThatNamesTheParameters) {
  expect_all_ok(Ranks("frozen", 2).wait());
}

}  // namespace
}  // namespace gpipe
