// Replicas whose data takes other ways through the model, and replicas that
// evaluate other numbers of micro-batches.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
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

using testing::check;
using testing::error_of;
using testing::expect_ok;
using testing::mean_square;
using testing::RankProgramEntry;
using testing::world_options;
using torch::Tensor;
namespace nn = torch::nn;

DistributedOptions replicas_of(std::vector<int64_t> balance, int64_t replicas) {
  return testing::on_cpu(std::move(balance)).data_parallel(replicas);
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

// A linear layer, and a parameter that only the layer of another stage may use.
struct CapturingImpl : nn::Module {
  CapturingImpl(Tensor shared, bool owns)
      : linear(register_module(
            "linear", nn::Linear(nn::LinearOptions(4, 4).bias(false)))),
        shared(std::move(shared)),
        owns(owns) {
    if (owns) register_parameter("shared", this->shared);
  }
  Tensor forward(const Tensor& x) {
    const Tensor y = linear->forward(x);
    return owns ? y : y.mm(shared);
  }
  nn::Linear linear;
  const Tensor shared;
  const bool owns;
};
TORCH_MODULE(Capturing);

// Two replicas of one rank with two stages. The gradient of a parameter of one
// stage is made by the other one, whose last backward may be earlier or later.
const RankProgramEntry kCaptured("captured", [](auto& world) {
  for (const int owner : {0, 1}) {
    for (const Schedule& schedule : {named_schedule("looped-bfs", 1, 2, 2),
                                     parse_schedule("0F0,1F0,1I0,0B0,1W0")}) {
      torch::manual_seed(3);
      const Tensor shared =
          torch::randint(-2, 3, {4, 4}, torch::kDouble).requires_grad_();
      nn::Sequential layers(Capturing(shared, owner == 0),
                            Capturing(shared, owner == 1));
      layers->to(torch::kDouble);
      {
        const torch::NoGradGuard no_graph;
        for (const auto& each : layers->named_parameters()) {
          if (each.key().ends_with("weight")) {
            each.value().copy_(torch::randint(-1, 2, {4, 4}, torch::kDouble));
          }
        }
      }
      const Tensor x = torch::randint(-2, 3, {8, 4}, torch::kDouble);
      const Tensor y = torch::randint(-2, 3, {8, 4}, torch::kDouble);
      const int64_t begin = 4 * world->rank();
      DistributedPipeline pipeline(
          layers, replicas_of({1, 1}, 2).stages_per_rank(2), world);
      pipeline->train_step(x.narrow(0, begin, 4), y.narrow(0, begin, 4),
                           loss_of, schedule);
      const Tensor sum = shared.grad().clone();
      layers->zero_grad();
      loss_of(layers->forward(x), y).backward();
      check(sum.equal(shared.grad()), "owner " + std::to_string(owner));
    }
  }
});

// Multiplies `x` by a weight in bfloat16, whose gradient is computed and kept
// in float32.
struct Product : torch::autograd::Function<Product> {
  static Tensor forward(torch::autograd::AutogradContext* context,
                        const Tensor& x, const Tensor& weight) {
    context->save_for_backward({x, weight});
    return x * weight.to(torch::kFloat);
  }
  static std::vector<Tensor> backward(torch::autograd::AutogradContext* context,
                                      std::vector<Tensor> grads) {
    const auto saved = context->get_saved_variables();
    return {grads[0] * saved[1].to(torch::kFloat),
            (grads[0] * saved[0]).sum(0)};
  }
};

// Two such products; the second is left out where the first input is negative.
struct ProductsImpl : nn::Module {
  ProductsImpl()
      : a(register_parameter("a", torch::ones({4}, torch::kBFloat16))),
        b(register_parameter("b", torch::ones({4}, torch::kBFloat16))) {}
  Tensor forward(const Tensor& x) {
    const Tensor y = Product::apply(x, a);
    return x[0][0].item<float>() < 0 ? y : Product::apply(y, b);
  }
  Tensor a, b;
};
TORCH_MODULE(Products);

// The gradients do not fit into bfloat16.
const RankProgramEntry kGradTypes("types of gradients", [](auto& world) {
  torch::set_num_threads(1);
  for (const int setting : {0, 1, 2, 3}) {
    const bool sharded = setting / 2 == 1, is_set_later = setting % 2 == 1;
    const Tensor x = torch::tensor({{257., 1., 2., 3.}, {-1025., 1., 2., 3.}});
    nn::Sequential layers(Products{});
    const auto set_types = [&] {
      for (Tensor& each : layers->parameters()) {
        each.set_grad_dtype(torch::kFloat);
      }
    };
    if (!is_set_later) set_types();
    DistributedPipeline pipeline(
        layers, replicas_of({1}, 2).shard_optimizer(sharded), world);
    if (is_set_later) set_types();
    pipeline->train_step(
        x.narrow(0, world->rank(), 1), torch::ones({1, 4}),
        [](const Tensor& output, const Tensor&) { return output.sum(); },
        fill_drain(1, 1));
    const Tensor a = torch::tensor({-768., 2., 4., 6.}) / 2;
    const Tensor b = torch::tensor({257., 1., 2., 3.}) / 2;
    const auto parameters = pipeline->optimizer_parameters();
    const auto own = [&](const Tensor& whole) {
      return sharded ? whole.narrow(0, 2 * world->rank(), 2) : whole;
    };
    check(parameters.size() == 2 && parameters[0].grad().equal(own(a)) &&
              parameters[1].grad().equal(own(b)),
          std::string(sharded ? "gradients of shards" : "gradients") +
              (is_set_later ? ", types set later" : ""));
  }
});

// The gradient that the layer adds in its backward would stay in its replica.
const RankProgramEntry kOwnGradients("own gradients", [](auto& world) {
  const nn::Linear linear(4, 4);
  nn::Sequential layers(linear, testing::adds_to_grad(linear));
  DistributedPipeline pipeline(layers, replicas_of({2}, 2), world);
  const Tensor x = torch::ones({4, 4});
  const std::string error = error_of(
      [&] { pipeline->train_step(x, x, mean_square, fill_drain(1, 2)); });
  check(error.find("the layers of partition 0 have added to the gradient of "
                   "parameter '0.weight' themselves") != std::string::npos,
        error);
});

// Two replicas of one rank with two stages.
const RankProgramEntry kRoutes("routes", [](auto& world) {
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
        check(grad.storage().nbytes() == grad.nbytes(), what + " is no view");
      }
    }
  }
});

// Replicas that froze different layers of equal sizes.
const RankProgramEntry kFrozen("frozen", [](auto& world) {
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
});

// A layer that draws its parameter in its first forward.
struct DrawsImpl : nn::Module {
  Tensor forward(Tensor x) {
    if (!scale.defined()) {
      scale = register_parameter("scale", torch::rand({4}, x.options()));
    }
    return x * scale;
  }
  Tensor scale;
};
TORCH_MODULE(Draws);

// Returns the parameters of all replicas as texts of bytes.
std::vector<std::string> parameters_of_all(World& world,
                                           const PipelineModule& pipeline) {
  const Tensor all = nn::utils::parameters_to_vector(pipeline.parameters());
  return all_gather(world,
                    std::string(static_cast<const char*>(all.const_data_ptr()),
                                all.nbytes()));
}

const RankProgramEntry kDraws("draws", [](auto& world) {
  for (const bool sharded : {false, true}) {
    torch::manual_seed(3);
    nn::Sequential layers(nn::Linear(4, 4), Draws());
    DistributedPipeline pipeline(
        layers, replicas_of({2}, world->size()).shard_optimizer(sharded),
        world);
    const Tensor x = torch::ones({4, 4}) + world->rank();
    const auto values = [&] { return parameters_of_all(*world, *pipeline); };
    pipeline->forward(x);
    check(layers[1]->parameters().size() == 1, "the parameter");
    const auto drawn = values();
    check(drawn[0] != drawn[1], "replicas draw other numbers");
    torch::optim::SGD optimizer(pipeline->optimizer_parameters(), 0.1);
    for (int step = 0; step < 2; ++step) {
      pipeline->zero_grad();
      pipeline->train_step(x, x, mean_square, fill_drain(1, 2));
      if (step == 0) {
        for (const std::string& each : values()) {
          check(each == drawn[0], "all have those of replica 0");
        }
      }
      optimizer.step();
      pipeline->share_parameters();
      const auto now = values();
      for (const std::string& each : now) {
        check(each != drawn[0], "all have trained");
        check(each == now[0], "all are equal");
      }
    }
  }
});

struct HeadedImpl : nn::Module {
  Tensor forward(Tensor x) { return head(x); }
  void replace_head() { head = replace_module("head", nn::Linear(4, 4)); }
  nn::Linear head = register_module("head", nn::Linear(4, 4));
};
TORCH_MODULE(Headed);

// A layer of all replicas, and then of replica 0 alone, gets another head.
const RankProgramEntry kReplaces("replaces", [](auto& world) {
  for (const bool sharded : {false, true}) {
    torch::manual_seed(3);
    Headed layer;
    DistributedPipeline pipeline(
        nn::Sequential(layer),
        replicas_of({1}, world->size()).shard_optimizer(sharded), world);
    const Tensor x = torch::ones({4, 4}) + world->rank();
    const auto train = [&] {
      pipeline->train_step(x, x, mean_square, fill_drain(1, 2));
    };
    const auto values = [&] { return parameters_of_all(*world, *pipeline); };
    train();
    for (const int replacing : {world->size(), 1}) {
      torch::manual_seed(10 * replacing + world->rank());
      if (world->rank() < replacing) layer->replace_head();
      const auto drawn = values();
      check(drawn[0] != drawn[1], "replicas draw other numbers");
      train();
      for (const std::string& each : values()) {
        check(each == drawn[0], "all have those of replica 0");
      }
      int64_t numel = 0;
      for (const Tensor& each : pipeline->optimizer_parameters()) {
        numel += each.numel();
      }
      check(numel == (sharded ? 20 / world->size() : 20),
            "the optimizer has the present parameters");
    }
  }
});

// Two replicas of one or two ranks that evaluate other numbers of rows.
const RankProgramEntry kRows("rows", [](auto& world) {
  const int ranks = world->size() / 2;
  torch::manual_seed(3);
  nn::Sequential layers(nn::Linear(4, 4), nn::Linear(4, 2));
  layers->to(torch::kDouble);
  const auto plain =
      std::dynamic_pointer_cast<nn::SequentialImpl>(layers->clone());
  DistributedPipeline pipeline(
      layers,
      replicas_of(
          ranks == 1 ? std::vector<int64_t>{2} : std::vector<int64_t>{1, 1}, 2)
          .chunks(4),
      world);
  const int replica = pipeline->layout().replica;
  for (const auto& rows :
       std::vector<std::vector<int64_t>>{{8, 6}, {8, 0}, {3, 8}, {1, 2}}) {
    torch::manual_seed(rows[0]);
    const int64_t all = rows[0] + rows[1];
    const Tensor x = torch::randn({all, 4}, torch::kDouble);
    const Tensor y = torch::randn({all, 2}, torch::kDouble);
    const int64_t begin = replica == 0 ? 0 : rows[0];
    const Tensor input = x.narrow(0, begin, rows[replica]);
    const Tensor target = y.narrow(0, begin, rows[replica]);
    const std::string name =
        std::to_string(rows[0]) + " and " + std::to_string(rows[1]) + " rows: ";
    const torch::NoGradGuard no_graph;
    const Tensor expected = mean_square(plain->forward(x), y);
    const StepResult result = pipeline->evaluate(input, target, mean_square);
    check(result.loss.allclose(expected, 1e-12, 1e-12), name + "the loss");
    const auto output = pipeline->forward(input);
    check(output.has_value() == pipeline->layout().has_last(), name + "rank");
    if (output) {
      check(output->allclose(plain->forward(input), 1e-12, 1e-12),
            name + "the output");
    }
    // Each row of replica 0 is a micro-batch, and all rows of replica 1 are
    // one.
    const auto parts = [&](const Tensor& tensor) {
      return Microbatches<Tensor>{replica == 0 ? tensor.split(1)
                                               : std::vector<Tensor>{tensor}};
    };
    const StepResult split =
        pipeline->evaluate(parts(input), parts(target), mean_square);
    check(split.loss.allclose(expected, 1e-12, 1e-12), name + "of parts");
  }
  // A step with backwards needs one schedule.
  const Tensor x = torch::ones({8, 4}, torch::kDouble);
  const std::string error = error_of([&] {
    pipeline->train_step(x, x.narrow(1, 0, 2), mean_square,
                         fill_drain(ranks, replica == 0 ? 4 : 2));
  });
  check(error.find("c10::ValueError: the ranks were given different "
                   "schedules: ") == 0,
        error);
  pipeline->train_step(x, x.narrow(1, 0, 2), mean_square, fill_drain(ranks, 4));
});

// In training mode, forward() of each micro-batch draws its own numbers, also
// if replicas have other numbers of micro-batches.
const RankProgramEntry kDropout("dropout", [](auto& world) {
  const int rank = world->rank();
  const auto parts = [](int64_t count) {
    return Microbatches<Tensor>{
        std::vector<Tensor>(count, torch::ones({1, 128}))};
  };
  DistributedPipeline pipeline(nn::Sequential(nn::Dropout(0.5)),
                               replicas_of({1}, world->size()), world);
  // Returns the outputs of all replicas as texts of bytes.
  const auto outputs = [&](int64_t count) {
    torch::manual_seed(5);
    std::string mine;
    const auto output = pipeline->forward(parts(count));
    for (const Tensor& each : output->parts) {
      mine.append(static_cast<const char*>(each.const_data_ptr()),
                  each.nbytes());
    }
    std::vector<std::string> all;
    for (const std::string& text : all_gather(*world, mine)) {
      for (std::size_t at = 0; at < text.size(); at += 512) {
        all.push_back(text.substr(at, 512));
      }
    }
    return all;
  };
  const auto drawn = outputs(std::vector<int64_t>{4, 2, 4}.at(rank));
  check(drawn.size() == 10, "the outputs");
  for (std::size_t k = 0; k < drawn.size(); ++k) {
    for (std::size_t n = 0; n < k; ++n) {
      check(drawn[k] != drawn[n], "outputs " + std::to_string(n) + " and " +
                                      std::to_string(k) + " are equal");
    }
  }
  // With equal numbers the bits are those of one process.
  const auto equal = outputs(2);
  GPipe one(nn::Sequential(nn::Dropout(0.5)),
            GPipeOptions({1}).devices({torch::kCPU}));
  torch::manual_seed(5);
  const auto expected = one->forward(parts(6)).parts;
  for (std::size_t k = 0; k < expected.size(); ++k) {
    check(equal.at(k) ==
              std::string(
                  static_cast<const char*>(expected[k].const_data_ptr()), 512),
          "output " + std::to_string(k) + " of one process");
  }
});

// The last replica evaluates while the other one only runs forward().
const RankProgramEntry kOtherCall("other call", [](auto& world) {
  const int ranks = world->size() / 2;
  nn::Sequential layers;
  for (int k = 0; k < ranks; ++k) layers->push_back(nn::Linear(4, 4));
  DistributedPipeline pipeline(
      layers, replicas_of(std::vector<int64_t>(ranks, 1), 2), world);
  const Tensor x = torch::ones({2, 4});
  const std::string error = error_of([&] {
    if (pipeline->layout().replica == 1) {
      pipeline->evaluate(x, x, mean_square);
    } else {
      pipeline->forward(x);
    }
  });
  check(error.find("gpipe::PeerError: rank " + std::to_string(ranks) +
                   " disagrees: it is at 'the beginning of a step', but rank 0 "
                   "is at 'the beginning of forward()'") == 0,
        error);
});

TEST(Replicas, OfWhichOneEvaluatesAndOneRunsForwardAreAnError) {
  for (const int size : {2, 4}) expect_ok("other call", size);
}

TEST(Replicas, OfOtherRoutesAddUpTheGradientsOfEachParameter) {
  expect_ok("routes", 2);
}

TEST(Replicas, RefuseGradientsThatLayersAddThemselves) {
  expect_ok("own gradients", 2);
}

TEST(Replicas, AddUpGradientsInTheDtypeThatTheParametersNameForThem) {
  expect_ok("types of gradients", 2);
}

TEST(Replicas, AddUpAParameterThatOnlyAnotherStageUses) {
  expect_ok("captured", 2);
}

TEST(Replicas, ThatFrozeOtherLayersAreAnErrorThatNamesTheParameters) {
  expect_ok("frozen", 2);
}

TEST(Replicas, GetTheParametersThatReplica0RegistersInAForward) {
  expect_ok("draws", 2);
}

TEST(Replicas, GetTheParametersWithWhichReplica0ReplacesOthers) {
  expect_ok("replaces", 2);
}

TEST(Replicas, MayEvaluateOtherNumbersOfRows) {
  for (const int size : {2, 4}) expect_ok("rows", size);
}

TEST(Replicas, OfOtherNumbersOfMicroBatchesDrawOtherNumbers) {
  expect_ok("dropout", 3);
}

}  // namespace
}  // namespace gpipe
