// Arguments that are wrong or different on one rank: all ranks throw, no
// gradient changes, and the next step works in the same world.
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <string>
#include <vector>

#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/testing/comparison.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/mean_square.h"

namespace gpipe {
namespace {

using testing::argument;
using testing::check;
using testing::error_of;
using testing::expect_all_ok;
using testing::mean_square;
using testing::RankProgramEntry;
using testing::Ranks;
using testing::world_options;
using torch::Tensor;
namespace nn = torch::nn;

// A call that is wrong on one rank, and the beginnings of the errors.
struct WrongCall {
  std::string name;
  std::function<void(DistributedPipeline&)> call;
  std::string error;  // on the rank that makes the call
  // Part of the error of all ranks, if none is alone at fault.
  std::string of_all;
};

StepResult right_step(DistributedPipeline& pipeline, const Schedule& schedule) {
  const Tensor rows = torch::arange(24, torch::kDouble).view({8, 3}) / 24;
  return pipeline->train_step(rows, rows, mean_square, schedule);
}

std::vector<WrongCall> wrong_calls() {
  const auto step_of = [](const Schedule& schedule) {
    return [schedule](DistributedPipeline& pipeline) {
      right_step(pipeline, schedule);
    };
  };
  Schedule incomplete = one_forward_one_backward(2, 4);
  incomplete.ranks[1].pop_back();
  return {
      {"another order", step_of(fill_drain(2, 4)), "",
       "action 2 of rank 0 is "},
      {"other micro-batches", step_of(one_forward_one_backward(2, 8)), "",
       " has 8 micro-batches"},
      {"no backward", step_of(forward_only(2, 4)), "",
       "action 2 of rank 0 is "},
      {"evaluation mode",
       [](DistributedPipeline& pipeline) {
         pipeline->eval();
         right_step(pipeline, one_forward_one_backward(2, 4));
       },
       "", " 0R0 in the schedule of rank "},
      {"an invalid schedule", step_of(incomplete),
       "std::invalid_argument: ", ""},
      {"other ranks", step_of(one_forward_one_backward(4, 4)),
       "c10::ValueError: the schedule has 4 stages on 4 ranks, but the "
       "pipeline has 2 partitions on 2 ranks",
       ""},
      {"no gradients",
       [](DistributedPipeline& pipeline) {
         const c10::AutoGradMode off(false);
         right_step(pipeline, one_forward_one_backward(2, 4));
       },
       "c10::Error: train_step() needs gradients enabled", ""},
  };
}

std::string text_of(const std::function<void()>& call) {
  const std::string error = error_of(call);
  return error.substr(0, error.find(" (this is rank"));
}

// Expects the errors of `wrong` if rank `at_fault` makes its call.
void check_errors(World& world, const WrongCall& wrong, int at_fault,
                  const std::function<void()>& call) {
  const bool own = world.rank() == at_fault;
  const std::string place =
      wrong.name + " on rank " + std::to_string(at_fault) + ": ";
  if (!wrong.of_all.empty()) {
    const std::string error = error_of(call);
    const std::string begin =
        "c10::ValueError: the ranks were given different schedules: ";
    check(error.find(begin) == 0, place + error);
    check(error.find(wrong.of_all) != std::string::npos, place + error);
    const std::string named =
        "the schedule of rank " + std::to_string(at_fault);
    check(error.find(named) != std::string::npos, place + error);
  } else if (own) {
    const std::string error = error_of(call);
    check(error.find(wrong.error) == 0, place + error);
  } else {
    try {
      call();
      check(false, place + "no error");
    } catch (const PeerError& peer) {
      check(peer.failure().fault == Fault::kRefused, place + peer.what());
      check(peer.failure().rank == at_fault, place + peer.what());
      check(!peer.failure().what.empty(), place + peer.what());
    }
  }
  check(!world.failure(), place + "the world has failed");
}

const RankProgramEntry kWrongCalls("wrong calls", [] {
  torch::set_num_threads(1);
  const auto world = World::connect(world_options());
  const int replicas = world->size() / 2;
  torch::manual_seed(2);
  nn::Sequential layers(nn::Linear(3, 4), nn::Linear(4, 3));
  layers->to(torch::kDouble);
  DistributedPipeline pipeline(layers,
                               DistributedOptions({1, 1})
                                   .data_parallel(replicas)
                                   .device(torch::kCPU)
                                   .threads(1),
                               world);
  const Schedule schedule = one_forward_one_backward(2, 4);
  right_step(pipeline, schedule);
  std::vector<Tensor> expected;
  for (const Tensor& each : pipeline->parameters()) {
    expected.push_back(each.grad().clone());
  }
  for (int at_fault = 0; at_fault < world->size(); ++at_fault) {
    for (const WrongCall& wrong : wrong_calls()) {
      check_errors(*world, wrong, at_fault, [&] {
        if (world->rank() == at_fault) {
          wrong.call(pipeline);
        } else {
          right_step(pipeline, schedule);
        }
      });
      pipeline->train();
      check(!pipeline->last_failure(), wrong.name + ": last_failure()");
      for (std::size_t k = 0; k < expected.size(); ++k) {
        Tensor& grad = pipeline->parameters()[k].mutable_grad();
        check(grad.equal(expected[k]), wrong.name + ": .grad has changed");
        grad = Tensor();
      }
      right_step(pipeline, schedule);
      for (std::size_t k = 0; k < expected.size(); ++k) {
        check(pipeline->parameters()[k].grad().equal(expected[k]),
              wrong.name + ": the gradients of the next step");
      }
    }
  }
  return 0;
});

// The input is split on the first rank, and the target is not. Then the target
// has a graph.
const RankProgramEntry kOtherForm("other form", [] {
  torch::set_num_threads(1);
  const auto world = World::connect(world_options());
  DistributedPipeline pipeline(
      nn::Sequential(nn::Linear(3, 3), nn::Linear(3, 3)),
      DistributedOptions({1, 1}).device(torch::kCPU).threads(1), world);
  const Schedule schedule = one_forward_one_backward(2, 2);
  const Microbatches<Tensor> parts{{torch::ones({1, 3}), torch::ones({2, 3})}};
  const std::string error = text_of([&] {
    pipeline->train_step(parts, torch::ones({3, 3}), mean_square, schedule);
  });
  const std::string what =
      "the input of rank 0 is given as Microbatches, but the target of rank 1 "
      "is one value; give both in the same way";
  check(error == (world->rank() == 1
                      ? "c10::ValueError: " + what
                      : "gpipe::PeerError: rank 1 has refused its arguments: " +
                            what),
        error);
  pipeline->train_step(parts, parts, mean_square, schedule);

  const Tensor rows = torch::ones({4, 3});
  const Tensor with_graph = torch::ones({4, 3}).requires_grad_() * 2;
  const std::string of_target = text_of(
      [&] { pipeline->train_step(rows, with_graph, mean_square, schedule); });
  check(of_target.find(world->rank() == 1
                           ? "c10::ValueError: the target requires grad"
                           : "gpipe::PeerError: rank 1 has refused its "
                             "arguments: the target requires grad") == 0,
        of_target);
  pipeline->evaluate(rows, with_graph, mean_square);
  pipeline->train_step(rows, with_graph.detach(), mean_square, schedule);
  return 0;
});

// A target without rows is not the input's.
const RankProgramEntry kNoTargetRows("no target rows", [] {
  torch::set_num_threads(1);
  const auto world = World::connect(world_options());
  DistributedPipeline pipeline(
      nn::Sequential(nn::Linear(3, 3), nn::Linear(3, 3)),
      DistributedOptions({1, 1}).device(torch::kCPU).threads(1), world);
  const std::string error = text_of([&] {
    pipeline->train_step(torch::ones({8, 3}), torch::ones({0, 3}), mean_square,
                         one_forward_one_backward(2, 2));
  });
  check(error.find("the input of rank 0 has 8 rows, but the target of rank 1 "
                   "has 0; on the last rank") != std::string::npos,
        error);
  return 0;
});

// A layer is added to the Sequential on one rank.
const RankProgramEntry kAddedLayer("added layer", [] {
  torch::set_num_threads(1);
  const auto world = World::connect(world_options());
  nn::Sequential layers(nn::Linear(3, 3), nn::Linear(3, 3));
  layers->to(torch::kDouble);
  DistributedPipeline pipeline(
      layers, DistributedOptions({1, 1}).device(torch::kCPU).threads(1), world);
  if (world->rank() == 0) layers->push_back(nn::Linear(3, 3));
  const Schedule schedule = one_forward_one_backward(2, 4);
  check_errors(*world,
               {"added layer",
                {},
                "c10::ValueError: the Sequential has 3 layers now, but it had "
                "2 when",
                ""},
               0, [&] { right_step(pipeline, schedule); });
  return 0;
});

// Rank 1 clips to another norm, then to a norm of another type.
const RankProgramEntry kOtherNorm("other norm", [] {
  torch::set_num_threads(1);
  const auto world = World::connect(world_options());
  torch::manual_seed(2);
  nn::Sequential layers(nn::Linear(3, 4), nn::Linear(4, 3));
  layers->to(torch::kDouble);
  DistributedPipeline pipeline(
      layers, DistributedOptions({1, 1}).device(torch::kCPU).threads(1), world);
  right_step(pipeline, one_forward_one_backward(2, 4));
  const Tensor grad = pipeline->parameters()[0].grad();
  const Tensor before = grad.clone();
  const bool second = world->rank() == 1;
  check(error_of([&] { pipeline->clip_grad_norm_(second ? 0.5 : 0.25); }) ==
            "c10::ValueError: clip_grad_norm_() has max_norm 0.25 and "
            "norm_type 2 on rank 0, but max_norm 0.5 and norm_type 2 on rank "
            "1; call it with the same on all ranks",
        "another norm");
  check(error_of([&] {
          pipeline->clip_grad_norm_(0.25, second ? 1 : 2);
        }).find("c10::ValueError: ") == 0,
        "another type");
  check(grad.equal(before), "a gradient has changed");
  check(!world->failure(), "the world has failed");
  check(pipeline->clip_grad_norm_(1e-3) > 1e-3, "the norm");
  check(!grad.equal(before), "the gradient is not clipped");
  return 0;
});

TEST(DistributedPipeline, AnotherNormOnOneRankDoesNotEndTheWorld) {
  expect_all_ok(Ranks("other norm", 2).wait());
}

TEST(DistributedPipeline, AWrongScheduleOrModeOnOneRankDoesNotEndTheWorld) {
  for (const int size : {2, 4}) {
    expect_all_ok(Ranks("wrong calls", size).wait());
  }
}

TEST(DistributedPipeline, InputAndTargetAreGivenInTheSameWay) {
  expect_all_ok(Ranks("other form", 2).wait());
}

TEST(DistributedPipeline, ATargetWithoutRowsIsRefused) {
  expect_all_ok(Ranks("no target rows", 2).wait());
}

TEST(DistributedPipeline, ALayerThatIsAddedOnOneRankDoesNotEndTheWorld) {
  expect_all_ok(Ranks("added layer", 2).wait());
}

}  // namespace
}  // namespace gpipe
