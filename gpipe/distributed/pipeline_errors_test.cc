// Errors of a pipeline of processes. Errors of a layer are those of a pipeline
// of threads on the rank where they happen, and the other ranks get a PeerError
// with the text. If arguments are wrong or different on one rank, all ranks
// throw, no gradient changes, and the next step works in the same world.
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
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
#include "gpipe/testing/models.h"

namespace gpipe {
namespace {

using testing::check;
using testing::error_of;
using testing::expect_all_ok;
using testing::expect_ok;
using testing::mean_square;
using testing::RankProgramEntry;
using testing::Ranks;
using testing::world_options;
using torch::Tensor;
namespace nn = torch::nn;
using testing::argument;

// Prints the `Error` or the PeerError of `call`.
template <typename Error>
void print_error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const PeerError& error) {
    std::cout << "rank " << error.failure().rank << " "
              << to_string(error.failure().fault) << ": "
              << error.failure().what << std::endl;
  } catch (const Error& error) {
    std::cout << error.what_without_backtrace() << std::endl;
  }
}

// Layers with the same tensor twice in a tuple, one of which is changed in
// place.
const RankProgramEntry kTwice("twice", [](auto& world) {
  using Pair = std::tuple<Tensor, Tensor>;
  const nn::Sequential layers{
      nn::Linear(4, 4),
      testing::layer<Pair>([](Tensor x) { return Pair(x, x); }),
      testing::layer<Tensor, Pair>([](Pair pair) {
        return std::get<0>(pair).relu_() + std::get<1>(pair);
      })};
  DistributedPipeline pipeline(layers,
                               DistributedOptions({2, 1})
                                   .device(torch::kCPU)
                                   .checkpoint(Checkpoint::kNever),
                               world);
  print_error_of<c10::Error>([&] {
    pipeline->train_step(torch::ones({4, 4}), torch::ones({4, 4}), mean_square,
                         one_forward_one_backward(2, 2));
  });
});

// The matrix of the rank of variable "rank" has a tangent of forward-mode AD.
const RankProgramEntry kTangent("tangent", [] {
  using torch::autograd::ForwardADLevel;
  const auto world = World::connect(world_options());
  DistributedPipeline pipeline(
      nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 4)),
      DistributedOptions({1, 1}).chunks(2).device(torch::kCPU), world);
  const uint64_t level = ForwardADLevel::get_next_idx();
  if (world->rank() == std::stoi(testing::argument("rank"))) {
    const Tensor weight = pipeline->parameters()[0];
    weight._set_fw_grad(torch::ones_like(weight), level,
                        /*is_inplace_op=*/false);
  }
  print_error_of<c10::NotImplementedError>([&] {
    pipeline->forward(torch::ones({4, 4}));
  });
  ForwardADLevel::release_idx(level);
  return 0;
});

// The last layer captures the first one's matrix, which is on another rank.
const RankProgramEntry kCaptured("captured", [](auto& world) {
  nn::Embedding embedding(5, 4);
  nn::Sequential layers(embedding, nn::Linear(4, 4),
                        testing::layer([weight = embedding->weight](Tensor x) {
                          return x.matmul(weight.t());
                        }));
  DistributedPipeline pipeline(layers, testing::on_cpu({1, 2}), world);
  print_error_of<c10::ValueError>([&] {
    pipeline->train_step(torch::arange(4), torch::ones({4, 5}), mean_square,
                         one_forward_one_backward(2, 2));
  });
  for (const Tensor& each : layers->parameters()) {
    check(!each.grad().defined(), "gradients are as they were");
  }
});

// The builder gives a name to each of its layers but the first one.
const RankProgramEntry kNamed("named", [](auto& world) {
  const auto make = [&](const std::vector<std::string>& names) {
    const auto build = [&](int64_t first, int64_t count) {
      nn::Sequential part(nn::Linear(2, 2));
      for (int64_t k = first + 1; k < first + count; ++k) {
        part->push_back(names[k], nn::AnyModule(nn::Linear(2, 2)));
      }
      return part;
    };
    return DistributedPipeline(
        build, DistributedOptions({2, 3}).device(torch::kCPU), world);
  };
  for (const auto& child :
       make({"", "head", "", "tail", "1"})->named_children()) {
    std::cout << child.key() << " ";
  }
  try {
    make({"", "head", "", "tail", "head"});
  } catch (const c10::Error& error) {
    // The error of this rank, or of the other one if that was faster.
    const std::string text = error.what_without_backtrace();
    check(text.find("the builder gave the name 'head' to the layers 1 and 4 of "
                    "the model; give each layer its own name, or none") !=
              std::string::npos,
          text);
    std::cout << "refused" << std::endl;
  }
});

// A layer of rank 1 returns a NaN in one micro-batch. Rank 1 throws
// NonFiniteError, rank 0 a PeerError, and no gradient changes.
const RankProgramEntry kNonFinite("non_finite", [](auto& world) {
  nn::Sequential layers(
      nn::Linear(4, 4), nn::Tanh(), nn::Linear(4, 4),
      testing::layer([](Tensor x) {
        return current_microbatch() == 2 ? (x - x.detach() - 1).log() : x;
      }),
      nn::Linear(4, 2));
  DistributedPipeline pipeline(layers, testing::on_cpu({2, 3}), world);
  try {
    pipeline->train_step(torch::ones({8, 4}), torch::ones({8, 2}), mean_square,
                         one_forward_one_backward(2, 4),
                         TrainOptions().check_finite(true));
  } catch (const NonFiniteError& error) {
    std::cout << error.what_without_backtrace() << "\n"
              << pipeline->last_failure()->place() << std::endl;
  } catch (const PeerError& error) {
    std::cout << "rank " << error.failure().rank << ": " << error.failure().what
              << std::endl;
  }
  for (const Tensor& each : pipeline->parameters()) {
    check(!each.grad().defined(), "gradients are as they were");
  }
});

// Returns whether `failure` has the beginning of the text of `error`.
bool is_of(const RankFailure& failure, const std::string& error) {
  return !failure.what.empty() &&
         error.find(failure.what.substr(0, 50)) != std::string::npos;
}

// Expects that `call` throws `error` on rank `at_fault`, and a PeerError with
// its text on the other rank. Makes a new world, because a failed one is
// useless.
void check_refused(nn::Sequential layers, int at_fault,
                   const std::string& error,
                   const std::function<void(DistributedPipeline&)>& call) {
  const auto world = World::connect(world_options());
  const std::string found = error_of([&] {
    // The other rank may throw while it makes its pipeline.
    DistributedPipeline pipeline(std::move(layers),
                                 testing::on_cpu({1, 1}).chunks(4), world);
    call(pipeline);
  });
  if (world->rank() == at_fault) {
    check(found.find(error) == 0, "'" + found + "' instead of " + error);
    return;
  }
  check(found.find("gpipe::PeerError: ") == 0, found);
  const RankFailure failure = world->failure().value();
  check(failure.rank == at_fault && failure.fault == Fault::kFailed, found);
  check(is_of(failure, error), found);
}

// Expects that `call`, which fails on rank 0, throws `error` there and a
// PeerError with its text on the other ranks, and that the world goes on.
void check_call_refused(const std::shared_ptr<World>& world,
                        DistributedPipeline& pipeline, const std::string& error,
                        const std::function<void()>& call) {
  std::string found;
  try {
    call();
  } catch (const PeerError& peer) {
    check(world->rank() != 0, "a PeerError at the fault");
    check(peer.failure().fault == Fault::kRefused, peer.what());
    check(peer.failure().rank == 0, peer.what());
    check(is_of(peer.failure(), error), peer.failure().what);
    found = error;
  } catch (...) {
    found = error_of([] { throw; });
  }
  check(found.find(error) == 0, "'" + found + "' instead of " + error);
  check(!world->failure(), "the world has failed");
  for (const Tensor& each : pipeline->parameters()) {
    check(!each.grad().defined(), "gradients are as they were");
  }
}

template <typename Input>
void check_input_refused(const nn::Sequential& layers, Input input, Input good,
                         const std::string& error) {
  const auto world = World::connect(world_options());
  const auto target = torch::ones({8, 3});
  DistributedPipeline pipeline(layers, testing::on_cpu({1, 1}).chunks(4),
                               world);
  const auto schedule = one_forward_one_backward(2, 4);
  const auto check_refused = [&](const auto& given, const std::string& why) {
    check_call_refused(world, pipeline, why, [&] {
      pipeline->train_step(given, target, mean_square, schedule);
    });
    check_call_refused(world, pipeline, why,
                       [&] { pipeline->evaluate(given, target, mean_square); });
    check_call_refused(world, pipeline, why, [&] { pipeline->forward(given); });
  };
  for (int round = 0; round < 2; ++round) {
    check_refused(input, error);
    check_refused(7,
                  "c10::TypeError: expected a torch::Tensor, a "
                  "std::vector<torch::Tensor> or a std::tuple of 1 to 8 "
                  "torch::Tensor, but got int");
  }
  // Shapes are predicted, then a step is refused, then they are as before.
  for (int round = 0; round < 5; ++round) {
    pipeline->train_step(good, target, mean_square, schedule);
    for (const Tensor& each : pipeline->parameters()) {
      each.mutable_grad() = Tensor();
    }
    if (round != 3) continue;
    check_call_refused(world, pipeline, error, [&] {
      pipeline->train_step(input, target, mean_square, schedule);
    });
  }
}

const RankProgramEntry kInputs("inputs", [] {
  torch::set_num_threads(1);
  check_input_refused(nn::Sequential(nn::Linear(3, 3), nn::Linear(3, 3)),
                      Tensor(), torch::ones({8, 3}),
                      "c10::TypeError: the input is an undefined tensor");
  check_input_refused(nn::Sequential(nn::Linear(3, 3), nn::Linear(3, 3)),
                      torch::ones({8, 3}, torch::kMeta), torch::ones({8, 3}),
                      "c10::ValueError: the input is on meta but the first "
                      "partition is on cpu; move it there first (device())");
  for (const auto& [a, b] :
       std::vector<std::pair<int64_t, int64_t>>{{6, 8}, {8, 7}, {8, 16}}) {
    check_input_refused(
        nn::Sequential(testing::EndMask(), nn::Linear(3, 3)),
        std::make_tuple(torch::ones({a, 3}), torch::ones({b, 3})),
        std::make_tuple(torch::ones({8, 3}), torch::ones({8, 3})),
        "c10::ValueError: the tensors of the input differ in size along "
        "dimension 0, which is split into micro-batches (sizes: " +
            std::to_string(a) + " " + std::to_string(b) + ")");
  }
  return 0;
});

// Wrong targets and too few rows, with skips between ranks, several stages per
// rank, and replicas, one of which has a right mini-batch.
const RankProgramEntry kTargets("targets", [](auto& world) {
  const int replicas = std::stoi(testing::argument("replicas"));
  const int ranks = world->size() / replicas;
  const Schedule schedule = interleaved(ranks, 4, 2);
  nn::Sequential layers = testing::skip_model();
  DistributedPipeline pipeline(layers,
                               testing::on_cpu(testing::cut(7, 2 * ranks))
                                   .stages_per_rank(2)
                                   .data_parallel(replicas),
                               world);
  const Tensor input = torch::ones({8, 4}, torch::kDouble);
  for (int round = 0; round < 3; ++round) {
    const bool wrong = pipeline->layout().replica == 0;
    const Tensor target = torch::ones({wrong ? 7 : 8, 4}, torch::kDouble);
    std::string error;
    try {
      pipeline->train_step(input, target, mean_square, schedule);
    } catch (const PeerError& peer) {
      check(peer.failure().fault == Fault::kRefused, peer.what());
      error = peer.failure().what;
    } catch (const c10::ValueError& value) {
      check(wrong && pipeline->layout().has_last(), value.what());
      error = value.what_without_backtrace();
    }
    check(error.find("the target must have a row for each of the input's 8") ==
                  0 ||
              error.find("the input of rank 0 has 8 rows, but the target of "
                         "rank 1 has 7") == 0,
          "'" + error + "'");
    check(!world->failure(), "the world has failed");
    for (const Tensor& each : pipeline->parameters()) {
      check(!each.grad().defined(), "gradients are as they were");
    }
    pipeline->train_step(input, input, mean_square, schedule);
    for (const Tensor& each : pipeline->parameters()) {
      check(each.grad().defined(), "no gradient");
      each.mutable_grad() = Tensor();
    }
  }
});

// The last rank of two, which has no input, passes one of another form, and
// then targets whose rows are wrong.
const RankProgramEntry kUnread("unread input", [](auto& world) {
  nn::Sequential layers(nn::Linear(4, 4), nn::Linear(4, 4));
  DistributedPipeline pipeline(layers, testing::on_cpu({1, 1}), world);
  const Schedule schedule = one_forward_one_backward(2, 4);
  const Tensor x = torch::ones({8, 4});
  if (world->rank() == 0) {
    pipeline->train_step(x, Tensor(), mean_square, schedule,
                         TrainOptions().outputs(true));
  } else {
    const StepResult result =
        pipeline->train_step(Microbatches<Tensor>(), x, mean_square, schedule,
                             TrainOptions().outputs(true));
    check(result.output().sizes() == x.sizes(), "the output");
  }
  // Something that is no tensor, where nothing reads it.
  if (world->rank() == 0) {
    pipeline->train_step(x, Tensor(), mean_square, schedule);
    pipeline->forward(x);
  } else {
    pipeline->train_step(0, x, mean_square, schedule);
    check(pipeline->forward(std::string()).value().sizes() == x.sizes(),
          "the output of forward()");
  }
  const auto loss = [](const Tensor& output, std::tuple<Tensor, Tensor> both) {
    return mean_square(output, std::get<0>(both));
  };
  const std::string start =
      "the target must have a row for each row of the input in dimension 0, "
      "but ";
  const std::string scalar = error_of(
      [&] { pipeline->train_step(x, torch::ones({}), mean_square, schedule); });
  check(scalar.find(start + "it has the sizes []") != std::string::npos,
        scalar);
  const std::string tuple = error_of([&] {
    pipeline->train_step(
        x, std::make_tuple(torch::ones({6, 4}), torch::ones({8, 4})), loss,
        schedule);
  });
  check(tuple.find(start + "its elements have the sizes [6, 4], [8, 4]") !=
            std::string::npos,
        tuple);
});

const RankProgramEntry kFailedAlone("failed alone", [](auto& world) {
  world->fail("a test", "no disk");
  const std::string error = error_of([&] { all_gather(*world, "mine"); });
  check(error.starts_with("gpipe::PeerError: rank 0 has failed: no disk"),
        "'" + error + "'");
});

// All ranks refuse what they have exchanged. The texts of 5 ranks travel by way
// of rank 2 to rank 3, when rank 0 has long had all.
const RankProgramEntry kRefusedByAll("refused by all", [](auto& world) {
  const auto all = all_gather(*world, std::string(4 << 20, 'a'));
  throw std::runtime_error("all refuse " + std::to_string(all.size()));
});

// Rank 1 fails in the first micro-batch. Rank 0, which needs no message until
// the end of its step, begins at most one, and none after it has been told.
const RankProgramEntry kStopsEarly("stops early", [](auto& world) {
  int forwards = 0;
  const auto layer = [&](Tensor x) {
    if (world->rank() == 1) throw std::runtime_error("no disk");
    ++forwards;
    while (!world->failure()) std::this_thread::yield();
    return x;
  };
  DistributedPipeline pipeline(
      nn::Sequential(nn::Functional(layer)),
      testing::on_cpu({1}).data_parallel(2).checkpoint(Checkpoint::kNever),
      world);
  const Tensor x = torch::ones({8, 3}, torch::requires_grad());
  const std::string error = error_of([&] {
    pipeline->train_step(x, x.detach(), mean_square,
                         one_forward_one_backward(1, 4));
  });
  check(error.find("no disk") != std::string::npos, error);
  check(forwards <= 1, c10::str(forwards, " forwards"));
});

const RankProgramEntry kNoReplicas("no replicas", [](auto& world) {
  for (const int64_t replicas : {int64_t{0}, (int64_t{1} << 32) + 1}) {
    const std::string error = error_of([&] {
      DistributedPipeline(nn::Sequential(nn::Linear(3, 3)),
                          DistributedOptions({1}).data_parallel(replicas),
                          world);
    });
    check(error.find(c10::str("c10::ValueError: the world has 1 ranks, but ",
                              replicas, " x 1 are needed")) == 0,
          "'" + error + "'");
  }
});

// The loss, on rank 1, calls its own pipeline.
const RankProgramEntry kNested("nested", [] {
  torch::set_num_threads(1);
  const std::vector<std::function<void(DistributedPipeline&)>> calls{
      [](DistributedPipeline& pipeline) { pipeline->any(true); },
      [](DistributedPipeline& pipeline) { pipeline->clip_grad_norm_(1.0); },
      [](DistributedPipeline& pipeline) { pipeline->forward(Tensor()); },
      [](DistributedPipeline& pipeline) {
        pipeline->evaluate(Tensor(), Tensor(), mean_square);
      }};
  for (const auto& call : calls) {
    check_refused(
        nn::Sequential(nn::Linear(3, 3), nn::Linear(3, 3)), 1,
        "c10::Error: a layer or the loss calls the pipeline that it is part of",
        [&](DistributedPipeline& pipeline) {
          pipeline->train_step(
              torch::ones({8, 3}), torch::ones({8, 3}),
              [&](const Tensor& output, const Tensor& target) {
                call(pipeline);
                return mean_square(output, target);
              },
              one_forward_one_backward(2, 4));
        });
  }
  return 0;
});

TEST(DistributedPipeline, RefusesNoWorldAndNoBuilder) {
  EXPECT_EQ(error_of([] {
              DistributedPipeline(nn::Sequential(nn::Linear(1, 1)),
                                  DistributedOptions({1}),
                                  std::shared_ptr<World>());
            }),
            "c10::ValueError: the world is null; give what World::connect() "
            "returned");
  EXPECT_EQ(error_of([] {
              DistributedPipeline(LayerBuilder(), DistributedOptions({1}),
                                  World::connect(WorldOptions()));
            }),
            "c10::ValueError: the builder is empty");
}

// The low 32 bits of the number of stages per rank are 0.
TEST(DistributedPipeline, RefusesAnEmptyBalanceWithManyStagesPerRank) {
  EXPECT_EQ(error_of([] {
              DistributedPipeline(LayerBuilder([](int64_t, int64_t) {
                                    return nn::Sequential();
                                  }),
                                  DistributedOptions(std::vector<int64_t>())
                                      .stages_per_rank(int64_t{1} << 32),
                                  World::connect(WorldOptions()));
            }),
            "c10::ValueError: the world has 1 ranks, but 1 x 0 are needed "
            "(data_parallel: 1, partitions: 0, stages_per_rank: 4294967296); "
            "start as many processes, or choose another balance");
}

TEST(DistributedPipeline, LayersOfABuilderKeepTheirNames) {
  const auto results = expect_ok("named", 2);
  EXPECT_EQ(results[0].out, "0 head refused\n");
  EXPECT_EQ(results[1].out, "2 tail 1 refused\n");
}

TEST(DistributedPipeline, RefusesACapturedParameterOfAnotherRank) {
  const auto results = expect_ok("captured", 2);
  const std::string what =
      "a layer of partition 1 has captured parameter '0.weight' of a layer on "
      "rank 0. The layer has its own copy of it: the parameter would lose this "
      "part of its gradient, and the copy would never be updated; pass it as a "
      "skip tensor (gpipe/skip.h), or choose a balance that puts both layers "
      "on one rank\n";
  EXPECT_EQ(results[0].out, "rank 1 has failed: " + what);
  EXPECT_EQ(results[1].out, what);
}

TEST(AllGather, OfAFailedWorldThrowsAlsoInAWorldOfOneRank) {
  expect_ok("failed alone", 1);
}

TEST(DistributedPipeline, RefusesReplicasThatTheWorldDoesNotHave) {
  expect_ok("no replicas", 1);
}

TEST(DistributedPipeline, RefusesATangentOnAnyRank) {
  for (const int rank : {0, 1}) {
    const std::string name = std::to_string(rank);
    const auto results = expect_ok("tangent", 2, {{"rank", name}});
    const std::string what =
        "an output of the layers has a tangent (forward-mode AD)";
    const std::string other = "rank " + name + " has failed: " + what;
    EXPECT_EQ(results[rank].out.rfind(what, 0), 0U) << results[rank].out;
    EXPECT_EQ(results[1 - rank].out.rfind(other, 0), 0U)
        << results[1 - rank].out;
  }
}

TEST(DistributedPipeline, RefusesAChangeOfWhatAnotherLayerGetsToo) {
  const auto results = expect_ok("twice", 2);
  const std::string what =
      "a layer of partition 1 changes a tensor in place that an earlier "
      "partition has given to more than one layer";
  EXPECT_EQ(results[1].out.rfind(what, 0), 0U) << results[1].out;
  EXPECT_EQ(results[0].out.rfind("rank 1 has failed: " + what, 0), 0U)
      << results[0].out;
}

TEST(DistributedPipeline, AnInputThatDoesNotFitIsTheErrorOfOneProcess) {
  expect_ok("inputs", 2);
}

TEST(DistributedPipeline, AWrongTargetOnOneRankDoesNotEndTheWorld) {
  for (const auto& [size, replicas] :
       std::vector<std::pair<int, const char*>>{{1, "1"}, {2, "1"}, {4, "2"}}) {
    expect_ok("targets", size, {{"replicas", replicas}});
  }
}

TEST(DistributedPipeline, ReadsTheInputOnTheFirstRankOnly) {
  expect_ok("unread input", 2);
}

TEST(DistributedPipeline, ItsOwnLossMayNotCallIt) {
  expect_all_ok(Ranks("nested", 2).wait(std::chrono::seconds(30)));
}

TEST(DistributedPipeline, NamesTheLayerThatGivesWhatIsNotFinite) {
  const auto results = expect_ok("non_finite", 2);
  const std::string what =
      "the output of layer '3' (gpipe::testing::FunctionLayer<at::Tensor, "
      "at::Tensor>) is not finite: 8 of 8 elements are nan";
  const std::string place =
      "partition 1, micro-batch 2, forward (checkpointed), layer '3'";
  EXPECT_EQ(results[1].out, what + " (in " + place + ")\n" + place + "\n");
  EXPECT_EQ(results[0].out.rfind("rank 1: " + what, 0), 0U) << results[0].out;
}

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

const RankProgramEntry kWrongCalls("wrong calls", [](auto& world) {
  const int replicas = world->size() / 2;
  torch::manual_seed(2);
  nn::Sequential layers(nn::Linear(3, 4), nn::Linear(4, 3));
  layers->to(torch::kDouble);
  DistributedPipeline pipeline(
      layers, testing::on_cpu({1, 1}).data_parallel(replicas), world);
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
});

// One rank is in another mode, with recomputes and without.
const RankProgramEntry kOtherMode("other mode", [](auto& world) {
  const int replicas = world->size() / 2;
  for (const auto mode : {Checkpoint::kNever, Checkpoint::kExceptLast}) {
    nn::Sequential layers(nn::Linear(3, 3), nn::Linear(3, 3));
    layers->to(torch::kDouble);
    DistributedPipeline pipeline(
        layers,
        testing::on_cpu({1, 1}).data_parallel(replicas).checkpoint(mode),
        world);
    const Schedule schedule = one_forward_one_backward(2, 4);
    const Tensor rows = torch::ones({4, 3}, torch::kDouble);
    for (int at_fault = 0; at_fault < world->size(); ++at_fault) {
      if (world->rank() == at_fault) pipeline->eval();
      // Of two ranks the first has the mode that counts.
      const int other = world->size() == 2 ? 1 : at_fault;
      const int most = other == 0 ? 1 : 0;
      const auto in_mode = [&](int rank) {
        return c10::str("rank ", rank, " is in ",
                        rank == at_fault ? "evaluation" : "training", " mode");
      };
      const auto expected = [&](int rank, int than) {
        return "c10::ValueError: " + in_mode(rank) + ", but " + in_mode(than) +
               "; call train(), eval() and evaluate() on all ranks";
      };
      const std::string step =
          error_of([&] { right_step(pipeline, schedule); });
      check(step == expected(other, most), step);
      // Of the replica with a rank at fault.
      const int first = at_fault / 2 * 2;
      const std::string forward = error_of([&] { pipeline->forward(rows); });
      check(forward == expected(first + 1, first), forward);
      pipeline->evaluate(rows, rows, mean_square);
      check(pipeline->is_training() == (world->rank() != at_fault),
            "evaluate() has changed the mode");
      // A layer may be in another mode than the pipeline.
      pipeline->train();
      if (world->rank() == at_fault) pipeline->children().front()->eval();
      right_step(pipeline, schedule);
      pipeline->train();
    }
    // Replicas need not agree if there is no backward.
    pipeline->train(world->rank() < 2);
    pipeline->forward(rows);
  }
});

// Returns a pipeline with a layer on each of two ranks.
DistributedPipeline two_layers(const std::shared_ptr<World>& world) {
  return DistributedPipeline(nn::Sequential(nn::Linear(3, 3), nn::Linear(3, 3)),
                             testing::on_cpu({1, 1}), world);
}

// The input is split on the first rank, and the target is not. Then the target
// has a graph.
const RankProgramEntry kOtherForm("other form", [](auto& world) {
  DistributedPipeline pipeline = two_layers(world);
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
});

// A target without rows is not the input's.
const RankProgramEntry kNoTargetRows("no target rows", [](auto& world) {
  DistributedPipeline pipeline = two_layers(world);
  const std::string error = text_of([&] {
    pipeline->train_step(torch::ones({8, 3}), torch::ones({0, 3}), mean_square,
                         one_forward_one_backward(2, 2));
  });
  check(error.find("the input of rank 0 has 8 rows, but the target of rank 1 "
                   "has 0; on the last rank") != std::string::npos,
        error);
});

// A layer is added to the Sequential on one rank.
const RankProgramEntry kAddedLayer("added layer", [](auto& world) {
  nn::Sequential layers(nn::Linear(3, 3), nn::Linear(3, 3));
  layers->to(torch::kDouble);
  DistributedPipeline pipeline(layers, testing::on_cpu({1, 1}), world);
  if (world->rank() == 0) layers->push_back(nn::Linear(3, 3));
  const Schedule schedule = one_forward_one_backward(2, 4);
  check_errors(*world,
               {"added layer",
                {},
                "c10::ValueError: the Sequential has 3 layers now, but it had "
                "2 when",
                ""},
               0, [&] { right_step(pipeline, schedule); });
});

// A layer is replaced in the pipeline of one rank.
const RankProgramEntry kReplacedLayer("replaced layer", [](auto& world) {
  DistributedPipeline pipeline = two_layers(world);
  pipeline->to(torch::kDouble);
  if (world->rank() == 1) pipeline->replace_module("1", nn::Linear(3, 3));
  const Schedule schedule = one_forward_one_backward(2, 4);
  check_errors(*world,
               {"replaced layer",
                {},
                "c10::ValueError: layer 1 has been replaced in the pipeline",
                ""},
               1, [&] { right_step(pipeline, schedule); });
});

// The last rank clips to another norm, then to a norm of another type. Then all
// clip to a norm that no gradients can have.
const RankProgramEntry kOtherNorm("other norm", [](auto& world) {
  torch::manual_seed(2);
  nn::Sequential layers(nn::Linear(3, 4), nn::Linear(4, 3));
  layers->to(torch::kDouble);
  DistributedPipeline pipeline(
      layers, testing::on_cpu({1, 1}).data_parallel(world->size() / 2), world);
  right_step(pipeline, one_forward_one_backward(2, 4));
  const Tensor grad = pipeline->parameters()[0].grad();
  const Tensor before = grad.clone();
  const int last = world->size() - 1;
  const bool other = world->rank() == last;
  check(error_of([&] { pipeline->clip_grad_norm_(other ? 0.5 : 0.25); }) ==
            c10::str("c10::ValueError: clip_grad_norm_() has max_norm 0.25 and "
                     "norm_type 2 on rank 0, but max_norm 0.5 and norm_type 2 "
                     "on rank ",
                     last, "; call it with the same on all ranks"),
        "another norm");
  check(error_of([&] {
          pipeline->clip_grad_norm_(0.25, other ? 1 : 2);
        }).find("c10::ValueError: ") == 0,
        "another type");
  for (const double norm : {-1.0, std::nan("")}) {
    check(error_of([&] { pipeline->clip_grad_norm_(norm); }) ==
              c10::str("c10::ValueError: clip_grad_norm_() has max_norm ", norm,
                       "; give 0 or more, or infinity to scale nothing"),
          "a wrong norm");
  }
  check(grad.equal(before), "a gradient has changed");
  check(!world->failure(), "the world has failed");
  check(pipeline->clip_grad_norm_(1e-3) > 1e-3, "the norm");
  check(!grad.equal(before), "the gradient is not clipped");
});

TEST(World, AllRanksThrowWhatAllFindInAGatheredText) {
  for (const auto& each : Ranks("refused by all", 5).wait()) {
    EXPECT_NE(each.err.find("all refuse 5"), std::string::npos) << each.err;
  }
}

TEST(DistributedPipeline, AReplicaStopsWhenAnotherOneHasFailed) {
  expect_ok("stops early", 2);
}

TEST(DistributedPipeline, AnotherNormOnOneRankDoesNotEndTheWorld) {
  for (const int size : {2, 4}) expect_ok("other norm", size);
}

TEST(DistributedPipeline, AWrongScheduleOnOneRankDoesNotEndTheWorld) {
  for (const int size : {2, 4}) expect_ok("wrong calls", size);
}

TEST(DistributedPipeline, AnotherModeOnOneRankDoesNotEndTheWorld) {
  for (const int size : {2, 4}) expect_ok("other mode", size);
}

TEST(DistributedPipeline, InputAndTargetAreGivenInTheSameWay) {
  expect_ok("other form", 2);
}

TEST(DistributedPipeline, ATargetWithoutRowsIsRefused) {
  expect_ok("no target rows", 2);
}

TEST(DistributedPipeline, ALayerThatIsAddedOnOneRankDoesNotEndTheWorld) {
  expect_ok("added layer", 2);
}

TEST(DistributedPipeline, ALayerThatIsReplacedOnOneRankDoesNotEndTheWorld) {
  expect_ok("replaced layer", 2);
}

}  // namespace
}  // namespace gpipe
