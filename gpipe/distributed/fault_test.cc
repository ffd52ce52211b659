// A failure of one rank ends the step on all ranks, with one error that says
// which rank has failed, and leaves nothing behind.
//
// The ranks train a small model. One of them is told to fail, is killed or
// stopped, or gets other options than the others.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "gpipe/bytes/crc32c.h"
#include "gpipe/distributed/channel/message.h"
#include "gpipe/distributed/channel/tensor_spec.h"
#include "gpipe/distributed/channel/wire.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/world/gather.h"
#include "gpipe/runtime/device/fault_point.h"
#include "gpipe/schedule.h"
#include "gpipe/testing/rounds.h"

// LibTorch's store leaks the buffer of its last read when a connection ends.
// This happens when strangers connect and leave while the rank with the store
// goes on.
extern "C" const char* __lsan_default_suppressions() {
  return "leak:c10d::detail::UvTcpSocket::alloc_buffer";
}

namespace gpipe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AnyOf;
using testing::argument;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RankProgramEntry;
using testing::RankResult;
using testing::Ranks;
using torch::Tensor;
namespace nn = torch::nn;
using Clock = std::chrono::steady_clock;
using Arguments = Ranks::Arguments;

constexpr int kFailedAsTold = 3;
constexpr char kWords[] = "the dog has eaten it";

// ---- In a rank. ----

int64_t step_now = 0;

int64_t number(const std::string& name, int64_t otherwise) {
  const std::string text = argument(name);
  return text.empty() ? otherwise : std::stoll(text);
}

// Prints a line for the test.
void say(const std::string& key, const std::string& value) {
  std::string line = value;
  for (char& each : line) {
    if (each == '\n') each = ' ';
  }
  std::cout << key + ": " + line + "\n" << std::flush;
}

// Returns the options, with those that only this rank was given.
WorldOptions world_options() {
  WorldOptions options = testing::world_options();
  options.rank = static_cast<int>(number("as_rank", options.rank));
  options.size = static_cast<int>(number("as_size", options.size));
  options.port = static_cast<int>(number("at_port", options.port));
  return options;
}

int64_t now_ms() {
  // All processes of a machine have the same clock.
  return std::chrono::duration_cast<milliseconds>(
             Clock::now().time_since_epoch())
      .count();
}

// Does what this rank was told to do at this place of this step, once.
void act(const std::string& place) {
  static std::atomic<bool> acted{false};
  if (argument("place") != place || number("at", 0) != step_now ||
      acted.exchange(true)) {
    return;
  }
  const std::string deed = argument("deed");
  if (deed == "std") throw std::runtime_error(kWords);
  if (deed == "c10") TORCH_CHECK_NOT_IMPLEMENTED(false, kWords);
  if (deed == "other") throw 42;
  const c10::SourceLocation here{__func__, __FILE__, __LINE__};
  if (deed == "memory") throw c10::OutOfMemoryError(here, kWords);
  // The error of another world than the pipeline's.
  if (deed == "peer") {
    throw PeerError(here, {Fault::kDied, 0, 0, "", ""}, kWords);
  }
  if (deed == "sleep")
    std::this_thread::sleep_for(milliseconds(number("ms", 0)));
}

struct ActInBackward : torch::autograd::Function<ActInBackward> {
  static Tensor forward(torch::autograd::AutogradContext*, Tensor x) {
    return x.tanh();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*, torch::autograd::variable_list grads) {
    act("backward");
    return grads;
  }
};

struct ActorImpl : nn::Module {
  Tensor forward(Tensor x) {
    act("forward");
    x = ActInBackward::apply(std::move(x));
    return argument("returns") == "sparse" ? x.to_sparse() : x;
  }
};
TORCH_MODULE(Actor);

Tensor mean_square(const Tensor& output, const Tensor& target) {
  act("loss");
  return (output - target).pow(2).mean();
}

constexpr int64_t kWidth = 16, kRows = 8;
constexpr int kMicrobatches = 4;

// Returns a model with two layers for each rank.
nn::Sequential make_model(int ranks) {
  torch::manual_seed(3);
  const int64_t inner = number("inner", kWidth);
  nn::Sequential model;
  for (int r = 0; r < ranks; ++r) {
    model->push_back(
        nn::Linear(r == 0 ? kWidth : inner, r == ranks - 1 ? kWidth : inner));
    model->push_back(Actor());
  }
  model->to(argument("dtype") == "float" ? torch::kFloat : torch::kDouble);
  return model;
}

std::vector<int64_t> balance_of(int ranks) {
  std::vector<int64_t> balance(ranks, 2);
  if (argument("balance") == "other") {
    --balance.front();
    ++balance.back();
  }
  return balance;
}

Checkpoint checkpoint_of(const std::string& name) {
  if (name == "always") return Checkpoint::kAlways;
  if (name == "never") return Checkpoint::kNever;
  return Checkpoint::kExceptLast;
}

// The layers and the state of their training, which outlive a world.
struct Trainee {
  explicit Trainee(int ranks)
      : layers(make_model(ranks)),
        optimizer(layers->parameters(),
                  torch::optim::SGDOptions(0.1).momentum(0.9)) {}
  nn::Sequential layers;
  torch::optim::SGD optimizer;
};

DistributedPipeline make_pipeline(const Trainee& trainee,
                                  const std::shared_ptr<World>& world) {
  const auto options = DistributedOptions(balance_of(world->size()))
                           .checkpoint(checkpoint_of(argument("checkpoint")))
                           .device(torch::kCPU)
                           .threads(1);
  if (argument("layers") != "built") {
    return DistributedPipeline(trainee.layers, options, world);
  }
  return DistributedPipeline(
      LayerBuilder([&](int64_t first, int64_t count) {
        act("builder");
        nn::Sequential part;
        for (int64_t k = first; k < first + count; ++k) {
          part->push_back(*std::next(trainee.layers->begin(), k));
        }
        return part;
      }),
      options, world);
}

StepResult train_step(DistributedPipeline& pipeline) {
  const int ranks = pipeline->layout().ranks;
  const auto type =
      argument("dtype") == "float" ? torch::kFloat : torch::kDouble;
  torch::manual_seed(100 + step_now);
  const Tensor input =
      torch::randn({number("input_rows", kRows), kWidth}, type);
  const Tensor target =
      torch::randn({number("target_rows", kRows), kWidth}, type);
  return pipeline->train_step(
      input, target, mean_square,
      argument("schedule") == "other"
          ? fill_drain(ranks, kMicrobatches)
          : one_forward_one_backward(ranks, kMicrobatches));
}

// Returns a checksum of the parameters of this rank.
std::string bits_of(nn::Module& module) {
  uint32_t crc = 0;
  for (const Tensor& each : module.parameters()) {
    const Tensor bytes = internal::bytes_of(each.detach());
    crc = internal::crc32c(bytes.const_data_ptr(), bytes.numel(), crc);
  }
  return std::to_string(crc);
}

std::vector<Tensor> grads_of(nn::Module& module) {
  std::vector<Tensor> grads;
  for (const Tensor& each : module.parameters()) {
    grads.push_back(each.grad().defined() ? each.grad().clone() : Tensor());
  }
  return grads;
}

bool same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (std::size_t k = 0; k < a.size(); ++k) {
    if (a[k].defined() != b[k].defined()) return false;
    if (a[k].defined() && !a[k].equal(b[k])) return false;
  }
  return a.size() == b.size();
}

// Prints what an exception is.
void report_failure(const std::exception_ptr& exception) {
  say("caught", std::to_string(now_ms()));
  try {
    std::rethrow_exception(exception);
  } catch (const PeerError& error) {
    const RankFailure& failure = error.failure();
    say("type", "PeerError");
    say("fault", to_string(failure.fault));
    say("rank", std::to_string(failure.rank));
    say("reporter", std::to_string(failure.reporter));
    say("action", failure.action);
    say("what", failure.what);
    say("text", error.what_without_backtrace());
  } catch (const c10::NotImplementedError& error) {
    say("type", "NotImplementedError");
    say("text", error.what_without_backtrace());
  } catch (const c10::ValueError& error) {
    say("type", "ValueError");
    say("text", error.what_without_backtrace());
  } catch (const c10::OutOfMemoryError& error) {
    say("type", "OutOfMemoryError");
    say("text", error.what_without_backtrace());
  } catch (const c10::DistNetworkError& error) {
    say("type", "DistNetworkError");
    say("text", error.what_without_backtrace());
  } catch (const c10::Error& error) {
    say("type", "c10::Error");
    say("text", error.what_without_backtrace());
  } catch (const std::runtime_error& error) {
    say("type", "runtime_error");
    say("text", error.what());
  } catch (const std::exception& error) {
    say("type", "std::exception");
    say("text", error.what());
  } catch (int value) {
    say("type", "int");
    say("text", std::to_string(value));
  }
}

// Trains forever, or for "steps" steps.
void train(const std::shared_ptr<World>& world, Trainee& trainee) {
  DistributedPipeline pipeline = make_pipeline(trainee, world);
  const int64_t steps = number("steps", 1 << 30);
  while (step_now < steps) {
    // The gradients of the step before; a step that fails leaves them
    // unchanged.
    const std::vector<Tensor> grads = grads_of(*pipeline);
    try {
      act("begin");
      train_step(pipeline);
    } catch (...) {
      report_failure(std::current_exception());
      say("grads", same(grads, grads_of(*pipeline)) ? "as before" : "changed");
      say("place", pipeline->last_failure() ? pipeline->last_failure()->place()
                                            : "none");
      // Some ranks release the world late.
      std::this_thread::sleep_for(milliseconds(number("hold_ms", 0)));
      throw;
    }
    trainee.optimizer.step();
    if (++step_now == 2) say("running", "yes");
  }
  say("bits", bits_of(*pipeline));
}

const RankProgramEntry kTrain("train", [] {
  torch::set_num_threads(1);
  say("pid", std::to_string(getpid()));
  if (argument("place").rfind("message", 0) == 0) {
    internal::set_fault_hook(
        [](const char* site, int64_t, int64_t) { act(site); });
  }
  try {
    const auto world = World::connect(world_options());
    Trainee trainee(world->size());
    train(world, trainee);
  } catch (...) {
    // If train() has printed the exception already, the test uses that one.
    report_failure(std::current_exception());
    return kFailedAsTold;
  }
  return 0;
});

// Trains on after an error, with what is in memory.
const RankProgramEntry kRecover("recover", [] {
  torch::set_num_threads(1);
  Trainee trainee(world_options().size);
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      train(World::connect(world_options()), trainee);
      say("attempts", std::to_string(attempt + 1));
      return 0;
    } catch (...) {
      report_failure(std::current_exception());
    }
  }
  return kFailedAsTold;
});

int count_threads() {
  int count = 0;
  for ([[maybe_unused]] const auto& each :
       std::filesystem::directory_iterator("/proc/self/task")) {
    ++count;
  }
  return count;
}

// Makes one world after the other, on the same port.
const RankProgramEntry kAgain("again", [] {
  torch::set_num_threads(1);
  Trainee trainee(world_options().size);
  int before = 0;
  int64_t longest = 0;
  for (int k = 0; k < 20; ++k) {
    auto world = World::connect(world_options());
    DistributedPipeline pipeline = make_pipeline(trainee, world);
    train_step(pipeline);
    pipeline = nullptr;
    const int64_t begin = now_ms();
    world.reset();
    longest = std::max(longest, now_ms() - begin);
    // The first use of LibTorch starts threads that stay.
    if (k == 0) before = count_threads();
  }
  // A thread that has just ended may still be listed.
  const auto deadline = Clock::now() + seconds(10);
  while (count_threads() > before && Clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  say("threads", std::to_string(count_threads() - before));
  say("longest", std::to_string(longest));
  return 0;
});

// Rank 0 forks between two steps. The child tries all calls and destroys its
// pipeline and world.
const RankProgramEntry kFork("fork", [] {
  torch::set_num_threads(1);
  auto world = World::connect(world_options());
  Trainee trainee(world->size());
  DistributedPipeline pipeline = make_pipeline(trainee, world);
  train_step(pipeline);
  if (world->rank() == 0) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(30);  // ends the child if it hangs
      const Tensor rows = torch::ones({kRows, kWidth}, torch::kDouble);
      const std::vector<std::function<void()>> calls{
          [&] { train_step(pipeline); },
          [&] { pipeline->any(true); },
          [&] { pipeline->forward(rows); },
          [&] { pipeline->evaluate(rows, rows, mean_square); },
          [&] { pipeline->clip_grad_norm_(1.0); },
          [&] { make_pipeline(trainee, world); },
          [&] { all_gather(*world, "of the fork"); }};
      int done = 0;
      for (const auto& call : calls) {
        try {
          call();
        } catch (const c10::Error& error) {
          const std::string text = error.what();
          if (text.find("in a fork of the process") != std::string::npos) {
            ++done;
            continue;
          }
        }
        ::_exit(1 + done);  // this call is not refused
      }
      pipeline = nullptr;
      world.reset();
      ::_exit(0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    say("fork", std::to_string(status));
  }
  for (++step_now; step_now < 4; ++step_now) train_step(pipeline);
  say("steps", std::to_string(step_now));
  return 0;
});

// Rank 1 sends wrong messages in its first step: activations to rank 2, or
// gradients to rank 0.
const RankProgramEntry kGarbage("garbage", [] {
  torch::set_num_threads(1);
  try {
    const auto world = World::connect(world_options());
    Trainee trainee(world->size());
    DistributedPipeline pipeline = make_pipeline(trainee, world);
    if (world->rank() != 1) {
      train_step(pipeline);
      return 0;
    }
    const internal::Tags tags(world->next_channel() - 1);  // of the pipeline
    const std::string schedule =
        to_csv(one_forward_one_backward(world->size(), kMicrobatches));
    internal::Message message;
    message.id.step = 1;
    message.id.schedule = internal::crc32c(
        schedule.data(), static_cast<int64_t>(schedule.size()));
    message.id.from_stage = 1;
    message.id.to_stage = 2;
    message.value_kind = static_cast<uint8_t>(internal::Value::Kind::kTensor);
    message.rows = kRows / kMicrobatches;
    message.total_rows = kRows;
    const Tensor truth = torch::ones({message.rows, kWidth}, torch::kFloat);
    Tensor said = torch::ones({message.rows, kWidth}, torch::kDouble);
    if (argument("kind") == "another message") message.id.microbatch = 3;
    if (argument("kind") == "another type") said = truth.to(torch::kInt);
    message.tensors.push_back(
        internal::spec_of(said, said.is_floating_point()));
    int to = 2;
    if (argument("kind").find("gradients") != std::string::npos) {
      to = message.id.to_stage = 0;
      message.id.direction = internal::Direction::kBackward;
      message.value_kind = static_cast<uint8_t>(internal::Value::Kind::kVector);
      message.tensors.assign(argument("kind") == "too few gradients" ? 0 : 2,
                             internal::TensorSpec());
    }
    const std::vector<uint8_t> bytes = internal::encode(message);
    Tensor header = torch::empty({internal::kHeaderBytes}, torch::kByte);
    std::memcpy(header.mutable_data_ptr(), bytes.data(),
                internal::kHeaderBytes);
    if (argument("kind") == "random bytes") header.random_(0, 256);
    const auto action = [] { return std::string("sending garbage"); };
    if (to == 0) {
      // Waits for an output, to which a gradient can be sent.
      const Tensor output = torch::empty_like(header);
      world->wait(*world->receive(output, 0, tags.header, action), 0, action);
    }
    const auto work = world->send(header, to, tags.header, action);
    const auto payload = world->send(
        internal::bytes_of(truth), to,
        tags.payload_of(internal::bytes_of(truth).numel(), truth.scalar_type()),
        action);
    world->wait(*work, to, action);
    world->wait(*payload, to, action);
    say("payload", "taken");
  } catch (...) {
    report_failure(std::current_exception());
    return kFailedAsTold;
  }
  return 0;
});

// ---- In the test. ----

// Returns what a rank has printed, by key; of equal keys the first.
std::map<std::string, std::string> said(const RankResult& result) {
  std::map<std::string, std::string> words;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) {
      words.emplace(line.substr(0, colon), line.substr(colon + 2));
    }
  }
  return words;
}

// Expects that a rank has ended by itself, without a signal, with a failure.
void expect_failed_in_order(const RankResult& result) {
  EXPECT_TRUE(result.ended);
  EXPECT_EQ(result.exit.code, kFailedAsTold) << to_string(result.exit) << "\n"
                                             << result.out << result.err;
}

bool is_running(const std::string& pid) {
  return ::kill(std::stoi(pid), 0) == 0 || errno != ESRCH;
}

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

struct Round {
  std::string name, program;
  std::vector<Arguments> arguments;  // by rank
};

// Runs the rounds in order and returns the results of each. Several rounds run
// at the same time, because ranks mostly wait for each other. `limit` is the
// limit for each round.
std::vector<std::vector<RankResult>> run_rounds(
    const std::vector<Round>& rounds, seconds limit) {
  constexpr std::size_t kAtOnce = 3;
  std::vector<std::vector<RankResult>> results;
  std::deque<Ranks> running;
  for (const Round& each : rounds) {
    if (running.size() == kAtOnce) {
      results.push_back(running.front().wait(limit));
      running.pop_front();
    }
    running.emplace_back(each.program, each.arguments);
  }
  for (Ranks& each : running) results.push_back(each.wait(limit));
  return results;
}

TEST(Fault, AnExceptionAnywhereIsAnErrorEverywhere) {
  constexpr int kRanks = 3;
  const std::map<std::string, std::pair<std::string, std::string>> deeds{
      {"std", {"runtime_error", kWords}},
      {"c10", {"NotImplementedError", kWords}},
      {"other", {"int", "no std::exception"}},
      {"peer", {"PeerError", kWords}}};
  std::vector<Round> rounds;
  std::vector<int> ranks_at_fault;
  int next = 0;
  for (const std::string place : {"forward", "loss", "backward"}) {
    for (const auto& [deed, expected] : deeds) {
      const int at_fault = place == "loss" ? kRanks - 1 : next++ % kRanks;
      ranks_at_fault.push_back(at_fault);
      std::vector<Arguments> arguments(kRanks);
      arguments[at_fault] = {{"place", place}, {"deed", deed}, {"at", "2"}};
      rounds.push_back({deed + " in " + place + " of " + rank_text(at_fault),
                        "train", arguments});
    }
  }
  const auto all_results = run_rounds(rounds, seconds(60));
  std::size_t round = 0;
  for (const std::string place : {"forward", "loss", "backward"}) {
    for (const auto& [deed, expected] : deeds) {
      SCOPED_TRACE(rounds[round].name);
      const int at_fault = ranks_at_fault[round];
      const std::vector<RankResult>& results = all_results[round++];
      for (int rank = 0; rank < kRanks; ++rank) {
        SCOPED_TRACE(rank_text(rank));
        expect_failed_in_order(results[rank]);
        auto words = said(results[rank]);
        EXPECT_EQ(words["grads"], "as before");
        if (rank == at_fault) {
          EXPECT_EQ(words["type"], expected.first);
          EXPECT_THAT(words["place"],
                      HasSubstr("partition " + std::to_string(rank)));
          continue;
        }
        EXPECT_EQ(words["type"], "PeerError");
        EXPECT_EQ(words["fault"], "has failed");
        EXPECT_EQ(words["rank"], std::to_string(at_fault));
        EXPECT_EQ(words["reporter"], std::to_string(at_fault));
        EXPECT_THAT(words["what"], HasSubstr(expected.second));
        EXPECT_THAT(words["action"],
                    HasSubstr("partition " + std::to_string(at_fault) +
                              ", micro-batch "));
        EXPECT_THAT(words["action"],
                    HasSubstr(place == "backward" ? "backward" : "forward"));
        EXPECT_THAT(words["text"],
                    HasSubstr(rank_text(at_fault) + " has failed: "));
      }
    }
  }
}

// Runs two ranks, of which rank `at_fault` fails in sending or receiving.
// Expects its own exception there, and a PeerError that names it on the other
// rank.
void expect_failed_on_the_way(int at_fault, const Arguments& deed,
                              const std::string& type,
                              const std::string& what) {
  std::vector<Arguments> arguments(2);
  arguments[at_fault] = deed;
  const auto results = Ranks("train", arguments).wait(seconds(60));
  for (int rank = 0; rank < 2; ++rank) {
    SCOPED_TRACE(rank_text(rank));
    expect_failed_in_order(results[rank]);
    auto words = said(results[rank]);
    EXPECT_EQ(words["grads"], "as before");
    if (rank == at_fault) {
      EXPECT_EQ(words["type"], type);
      EXPECT_THAT(words["text"], HasSubstr(what));
      continue;
    }
    EXPECT_EQ(words["type"], "PeerError");
    EXPECT_EQ(words["fault"], "has failed") << words["text"];
    EXPECT_EQ(words["rank"], std::to_string(at_fault));
    EXPECT_THAT(words["what"], HasSubstr(what));
    EXPECT_EQ(words["action"],
              "the output of stage 0 for micro-batch 0 of step 1, to stage 1");
  }
}

TEST(Fault, WhatCannotBeSentIsTheFaultOfItsSender) {
  expect_failed_on_the_way(0, {{"returns", "sparse"}}, "c10::Error",
                           "cannot be sent to another rank; make it dense with "
                           "to_dense() first");
}

TEST(Fault, MemoryThatARankLacksForAMessageIsItsOwnFault) {
  for (const int rank : {0, 1}) {
    SCOPED_TRACE(rank_text(rank));
    expect_failed_on_the_way(
        rank,
        {{"place", rank == 0 ? "message-out" : "message-in"},
         {"deed", "memory"}},
        "OutOfMemoryError", kWords);
  }
}

TEST(Fault, AnExceptionWhileAPipelineIsMadeIsAnErrorEverywhere) {
  constexpr int kRanks = 3, kAtFault = 1;
  std::vector<Arguments> arguments(
      kRanks, {{"layers", "built"}, {"timeout_ms", "60000"}});
  arguments[kAtFault].insert(
      arguments[kAtFault].end(),
      {{"place", "builder"}, {"deed", "c10"}, {"at", "0"}});
  // The failure must arrive long before the timeout.
  const auto results = Ranks("train", arguments).wait(seconds(30));
  for (int rank = 0; rank < kRanks; ++rank) {
    SCOPED_TRACE(rank_text(rank));
    expect_failed_in_order(results[rank]);
    auto words = said(results[rank]);
    if (rank == kAtFault) {
      EXPECT_EQ(words["type"], "NotImplementedError");
      continue;
    }
    EXPECT_EQ(words["type"], "PeerError");
    EXPECT_EQ(words["fault"], "has failed");
    EXPECT_EQ(words["rank"], std::to_string(kAtFault));
    EXPECT_EQ(words["action"], "making the pipeline");
    EXPECT_THAT(words["what"], HasSubstr(kWords));
  }
}

// Returns the seeds of expect_noticed(). The first four have 3 and 4 ranks and,
// for each signal, the first, a middle and the last rank at fault.
std::vector<unsigned> fault_seeds() {
  std::vector<unsigned> seeds{1, 2,  10, 18, 3,  4,  5,  6,  7,  8,
                              9, 11, 12, 13, 14, 15, 16, 17, 19, 20};
  seeds.resize(testing::rounds(4, 20));
  return seeds;
}

// Sends a signal to a rank at a random point in time of a step. Expects the
// other ranks to report it within `report` and to end within 5 s.
void expect_noticed(int number, const std::string& fault, milliseconds report,
                    const Arguments& arguments) {
  milliseconds longest{0}, longest_out{0};
  const std::vector<unsigned> seeds = fault_seeds();
  for (const unsigned seed : seeds) {
    std::mt19937 random(seed);
    const int ranks = 3 + static_cast<int>(random() % 2);
    const int at_fault = static_cast<int>(random() % ranks);
    const auto moment = std::chrono::microseconds(random() % 100000);
    std::ostringstream round;
    round << "seed " << seed << ": rank " << at_fault << " of " << ranks
          << " after " << moment.count() << " us";
    SCOPED_TRACE(round.str());
    Ranks running("train", ranks, arguments);
    for (int rank = 0; rank < ranks; ++rank) {
      ASSERT_TRUE(running.wait_for_line(rank, "running: yes"));
    }
    std::this_thread::sleep_for(moment);  // the test needs this delay
    const int64_t begin = now_ms();
    running.signal(at_fault, number);
    const auto results = running.wait_but({at_fault}, seconds(20));
    const milliseconds out(now_ms() - begin);
    EXPECT_LE(out, seconds(5));
    longest_out = std::max(longest_out, out);
    for (int rank = 0; rank < ranks; ++rank) {
      SCOPED_TRACE(rank_text(rank));
      auto words = said(results[rank]);
      EXPECT_FALSE(is_running(words.at("pid")));
      if (rank == at_fault) continue;
      expect_failed_in_order(results[rank]);
      EXPECT_EQ(words["type"], "PeerError");
      EXPECT_EQ(words["fault"], fault) << results[rank].out;
      EXPECT_EQ(words["rank"], std::to_string(at_fault)) << words["text"];
      EXPECT_EQ(words["grads"], "as before");
      if (words.count("caught") == 0) continue;
      const milliseconds noticed(std::stoll(words["caught"]) - begin);
      EXPECT_LE(noticed, report);
      longest = std::max(longest, noticed);
    }
  }
  std::cout << seeds.size() << " seeds: the error came after at most "
            << longest.count() << " ms, and the ranks were out after at most "
            << longest_out.count() << " ms" << std::endl;
}

TEST(Fault, AKilledRankIsNoticedWithinASecond) {
  expect_noticed(SIGKILL, "has died", seconds(1), {});
}

TEST(Fault, AStoppedRankIsNoticedWithinTheHeartbeatTimeoutAndASecond) {
  expect_noticed(SIGSTOP, "is frozen", seconds(2), {{"heartbeat_ms", "1000"}});
}

TEST(Fault, ATimeoutOfForeverIsNoneAtAll) {
  const std::string forever = std::to_string(milliseconds::max().count());
  Ranks running("train", 2,
                {{"timeout_ms", forever}, {"heartbeat_ms", forever}});
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(running.wait_for_line(rank, "running: yes"));
  }
  running.signal(1, SIGKILL);
  const auto results = running.wait_but({1}, seconds(20));
  expect_failed_in_order(results[0]);
  auto words = said(results[0]);
  EXPECT_EQ(words["type"], "PeerError");
  EXPECT_EQ(words["fault"], "has died");
  EXPECT_EQ(words["rank"], "1");
}

const RankProgramEntry kIdle("idle", [] {
  const auto world = World::connect(world_options());
  const std::clock_t begin = std::clock();
  std::this_thread::sleep_for(seconds(1));  // the test needs this delay
  const auto ticks = 1000 * (std::clock() - begin) / CLOCKS_PER_SEC;
  say("busy", std::to_string(ticks));  // ms of all threads
  return 0;
});

TEST(Fault, AShortHeartbeatTimeoutDoesNotKeepACoreBusy) {
  const auto results = Ranks("idle", 1, {{"heartbeat_ms", "1"}}).wait();
  EXPECT_LE(std::stoi(said(results[0])["busy"]), 150);
}

// Expects that all went well. Returns the checksums of the parameters, by rank.
std::vector<std::string> bits_of(const std::vector<RankResult>& results) {
  std::vector<std::string> bits;
  for (const RankResult& each : results) {
    EXPECT_TRUE(each.ended);
    EXPECT_TRUE(each.exit.ok()) << to_string(each.exit) << "\n"
                                << each.out << each.err;
    bits.push_back(said(each)["bits"]);
    EXPECT_NE(bits.back(), "");
  }
  return bits;
}

TEST(Fault, ARankThatIsSlowOrPausesIsNoFailure) {
  const Arguments steps{{"steps", "40"}, {"heartbeat_ms", "1000"}};

  // A layer takes longer than the heartbeat timeout.
  std::vector<Arguments> slow(3, steps);
  for (const auto& each : Arguments{{"place", "forward"},
                                    {"deed", "sleep"},
                                    {"ms", "1600"},
                                    {"at", "3"}}) {
    slow[1].push_back(each);
  }
  Ranks slow_ranks("train", slow);
  const auto bits = bits_of(Ranks("train", 3, steps).wait());
  EXPECT_EQ(bits_of(slow_ranks.wait()), bits);

  for (const int rank : {0, 2}) {
    Ranks running("train", 3, steps);
    ASSERT_TRUE(running.wait_for_line(rank, "running: yes"));
    running.signal(rank, SIGSTOP);
    std::this_thread::sleep_for(milliseconds(500));  // half of the timeout
    running.signal(rank, SIGCONT);
    EXPECT_EQ(bits_of(running.wait()), bits);
  }
}

TEST(Fault, ARankThatIsTooSlowIsNamed) {
  // All forwards come first, so rank 1 has all inputs and waits for no rank.
  std::vector<Arguments> arguments(
      2, {{"timeout_ms", "1200"}, {"schedule", "other"}});
  for (const auto& each : Arguments{{"place", "forward"},
                                    {"deed", "sleep"},
                                    {"ms", "2400"},
                                    {"at", "3"}}) {
    arguments[1].push_back(each);
  }
  const auto results = Ranks("train", arguments).wait(seconds(30));
  for (int rank = 0; rank < 2; ++rank) {
    SCOPED_TRACE(rank_text(rank));
    expect_failed_in_order(results[rank]);
    auto words = said(results[rank]);
    EXPECT_EQ(words["type"], "PeerError");
    EXPECT_EQ(words["fault"], "has not answered in time");
    EXPECT_EQ(words["rank"], "1");
    EXPECT_EQ(words["action"],
              "waiting for the gradient of stage 0's output for micro-batch 3 "
              "of step 4, from stage 1");
    EXPECT_EQ(words["what"], "nothing came for 1200 ms");
    EXPECT_EQ(words["grads"], "as before");
  }
}

TEST(Fault, ARankThatWaitsForTheOneThatIsTooSlowIsNotBlamed) {
  // Rank 0 begins the step first and so gives up first. It waits for rank 1,
  // which waits for rank 2.
  std::vector<Arguments> arguments(3, {{"timeout_ms", "1500"}, {"at", "3"}});
  for (const auto& each :
       Arguments{{"place", "begin"}, {"deed", "sleep"}, {"ms", "500"}}) {
    arguments[1].push_back(each);
  }
  for (const auto& each :
       Arguments{{"place", "forward"}, {"deed", "sleep"}, {"ms", "3000"}}) {
    arguments[2].push_back(each);
  }
  const auto results = Ranks("train", arguments).wait(seconds(30));
  for (int rank = 0; rank < 3; ++rank) {
    SCOPED_TRACE(rank_text(rank));
    expect_failed_in_order(results[rank]);
    auto words = said(results[rank]);
    EXPECT_EQ(words["type"], "PeerError");
    EXPECT_EQ(words["fault"], "has not answered in time");
    EXPECT_EQ(words["rank"], "2");
    EXPECT_EQ(words["reporter"], "0");
    EXPECT_EQ(words["what"],
              "nothing came for 1500 ms from rank 1, which waits for rank 2");
    EXPECT_EQ(words["grads"], "as before");
  }
}

struct Difference {
  std::string name;
  int rank;  // the rank with these arguments
  Arguments arguments;
  std::string fault, text;  // reported by all ranks
};

TEST(Fault, RanksThatDifferAreTold) {
  const std::vector<Difference> differences{
      {"world size",
       1,
       {{"as_size", "4"}},
       "disagrees",
       "give all the same WORLD_SIZE"},
      {"rank",
       2,
       {{"as_rank", "1"}},
       "disagrees",
       "there are two processes with rank 1 at 127.0.0.1:"},
      {"model", 2, {{"inner", "12"}}, "disagrees", "layer '0' is "},
      {"type", 1, {{"dtype", "float"}}, "disagrees", "layer '0' is "},
      {"balance",
       1,
       {{"balance", "other"}},
       "disagrees",
       "the balance is [1, 2, 3] on rank 1, but [2, 2, 2] on rank 0"},
      {"checkpoint mode",
       2,
       {{"checkpoint", "never"}},
       "disagrees",
       "the checkpoint mode is never on rank 2, but except_last on rank 0"},
      {"schedule", 1, {{"schedule", "other"}}, "disagrees", "schedule"},
      {"rows of the target", 2, {{"target_rows", "16"}}, "disagrees", "rows"},
      {"rows of the input", 0, {{"input_rows", "12"}}, "disagrees", "rows"},
  };
  std::vector<Round> rounds;
  for (const Difference& each : differences) {
    std::vector<Arguments> arguments(3, {{"timeout_ms", "20000"}});
    for (const auto& argument : each.arguments) {
      arguments[each.rank].push_back(argument);
    }
    rounds.push_back({each.name, "train", arguments});
  }
  const auto all_results = run_rounds(rounds, seconds(30));
  for (std::size_t k = 0; k < differences.size(); ++k) {
    const Difference& each = differences[k];
    const std::vector<RankResult>& results = all_results[k];
    SCOPED_TRACE(each.name);
    for (int rank = 0; rank < 3; ++rank) {
      SCOPED_TRACE(rank_text(rank));
      expect_failed_in_order(results[rank]);
      auto words = said(results[rank]);
      EXPECT_EQ(words["type"], "PeerError");
      EXPECT_EQ(words["fault"], each.fault);
      EXPECT_THAT(words["text"], HasSubstr(each.text));
    }
  }
}

TEST(Fault, AMissingRankIsNamedByAll) {
  const auto results =
      Ranks("train", 3, {{"as_size", "5"}, {"timeout_ms", "3000"}})
          .wait(seconds(30));
  for (const RankResult& each : results) {
    expect_failed_in_order(each);
    auto words = said(each);
    EXPECT_EQ(words["type"], "PeerError");
    EXPECT_EQ(words["fault"], "has not answered in time");
    EXPECT_EQ(words["rank"], "3");
    EXPECT_THAT(words["what"], HasSubstr("3 of 5 ranks came to 127.0.0.1:"));
    EXPECT_THAT(words["what"], HasSubstr(" in 3000 ms; missing: 3, 4"));
  }
}

// A socket on its own port. It accepts connections, sends `answer`, and closes
// them if `hangs_up`.
class Stranger {
 public:
  explicit Stranger(std::string answer, bool hangs_up = false)
      : answer_(std::move(answer)), hangs_up_(hangs_up) {
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(socket_, any, length), 0);
    EXPECT_EQ(::listen(socket_, 16), 0);
    EXPECT_EQ(::getsockname(socket_, any, &length), 0);
    port_ = ntohs(address.sin_port);
    accepter_ = std::thread([this] {
      std::vector<int> taken;
      while (true) {
        const int one = ::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
        if (one < 0) break;
        ::send(one, answer_.data(), answer_.size(), MSG_NOSIGNAL);
        if (hangs_up_) {
          ::close(one);
        } else {
          taken.push_back(one);
        }
      }
      for (const int each : taken) ::close(each);
    });
  }
  ~Stranger() {
    ::shutdown(socket_, SHUT_RDWR);
    accepter_.join();
    ::close(socket_);
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  std::string port() const { return std::to_string(port_); }

 private:
  const std::string answer_;
  const bool hangs_up_;
  int socket_ = -1, port_ = 0;
  std::thread accepter_;
};

std::string random_bytes(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::string bytes;
  while (bytes.size() < count) bytes.push_back(static_cast<char>(random()));
  return bytes;
}

TEST(Fault, APortThatIsInUseIsNamed) {
  for (const std::string& answer :
       {std::string(), random_bytes(4096, 1), random_bytes(100000, 2)}) {
    SCOPED_TRACE(std::to_string(answer.size()) + " bytes of garbage");
    const Stranger stranger(answer);
    // Rank 0 must end long before its timeout; the others wait for theirs.
    std::vector<Arguments> arguments(
        3, {{"at_port", stranger.port()}, {"timeout_ms", "1500"}});
    arguments[0] = {{"at_port", stranger.port()}, {"timeout_ms", "20000"}};
    const auto results = Ranks("train", arguments).wait(seconds(30));
    for (int rank = 0; rank < 3; ++rank) {
      SCOPED_TRACE(rank_text(rank));
      expect_failed_in_order(results[rank]);
      auto words = said(results[rank]);
      EXPECT_THAT(words["text"], HasSubstr("127.0.0.1:" + stranger.port()));
      if (rank == 0) {
        EXPECT_EQ(words["type"], "DistNetworkError");
        EXPECT_THAT(words["text"], HasSubstr("Address already in use"));
        EXPECT_THAT(words["text"], HasSubstr("MASTER_PORT"));
        EXPECT_LE(results[rank].exit.seconds, 3);
      } else {
        EXPECT_EQ(words["type"], "PeerError");
        EXPECT_EQ(words["fault"], "has not answered in time");
        EXPECT_EQ(words["rank"], "0");
      }
    }
  }
}

TEST(Fault, AStoreThatHangsUpIsNamed) {
  const Stranger stranger("", /*hangs_up=*/true);
  const auto results = Ranks("train", {Arguments{{"as_rank", "1"},
                                                 {"as_size", "2"},
                                                 {"at_port", stranger.port()},
                                                 {"timeout_ms", "1000"}}})
                           .wait(seconds(30));
  expect_failed_in_order(results[0]);
  auto words = said(results[0]);
  EXPECT_EQ(words["type"], "PeerError");
  EXPECT_EQ(words["fault"], "has not answered in time");
  EXPECT_EQ(words["rank"], "0");
  // LibTorch tries repeatedly, and may give up a little after gpipe does.
  const std::string place = "the store at 127.0.0.1:" + stranger.port();
  EXPECT_THAT(words["what"], AnyOf(HasSubstr("no connection to " + place),
                                   HasSubstr("no answer from " + place)));
}

TEST(Fault, GarbageFromAPeerIsAnErrorOnAllRanks) {
  const std::vector<std::array<std::string, 3>> kinds{
      {"random bytes", "disagrees", "not a message of gpipe"},
      {"another message", "disagrees", "micro-batch 3"},
      {"too few gradients", "disagrees",
       "with 0 gradients for the 1 tensors that went there"},
      {"too many gradients", "disagrees",
       "with 2 gradients for the 1 tensors that went there"},
      // The ranks wait until their timeout for the announced tensor.
      {"another size", "has not answered in time", "nothing came for 3000 ms"},
      {"another type", "has not answered in time", "nothing came for 3000 ms"}};
  // The rounds that reach their timeout run apart from the others. The ranks
  // must also meet within the timeout, which takes longer when many start.
  std::vector<Round> rounds, late;
  for (const auto& [kind, fault, text] : kinds) {
    const bool in_time = fault == "disagrees";
    const Arguments arguments{{"kind", kind},
                              {"checkpoint", "never"},
                              {"timeout_ms", in_time ? "20000" : "3000"}};
    (in_time ? rounds : late)
        .push_back({kind, "garbage", std::vector<Arguments>(3, arguments)});
  }
  auto all_results = run_rounds(rounds, seconds(30));
  for (const auto& each : run_rounds(late, seconds(30))) {
    all_results.push_back(each);
  }
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    const auto& [kind, fault, text] = kinds[k];
    const std::vector<RankResult>& results = all_results[k];
    SCOPED_TRACE(kind);
    for (int rank = 0; rank < 3; ++rank) {
      SCOPED_TRACE(rank_text(rank));
      expect_failed_in_order(results[rank]);
      auto words = said(results[rank]);
      EXPECT_EQ(words["type"], "PeerError");
      EXPECT_EQ(words["fault"], fault) << words["text"];
      EXPECT_THAT(words["text"], HasSubstr(text));
      if (fault == "disagrees") {
        EXPECT_EQ(words["rank"], "1");
      }
      EXPECT_EQ(words.count("payload"), 0u);
    }
  }
}

// Returns the running child processes of this process.
std::vector<std::string> children() {
  std::vector<std::string> pids;
  for (const auto& each : std::filesystem::directory_iterator("/proc")) {
    const std::string pid = each.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file("/proc/" + pid + "/stat");
    std::string stat;
    std::getline(file, stat);
    // The state and the parent follow the name, which may contain anything.
    std::istringstream fields(stat.substr(stat.rfind(')') + 1));
    std::string state;
    pid_t parent = 0;
    fields >> state >> parent;
    if (parent == ::getpid()) pids.push_back(pid);
  }
  return pids;
}

struct Listener {
  std::string address;  // hexadecimal, as in /proc/net/tcp
  int port;
};

// Returns the TCP addresses and ports where a process listens.
std::vector<Listener> listeners_of(const std::string& pid) {
  std::vector<std::string> inodes;
  for (const auto& each :
       std::filesystem::directory_iterator("/proc/" + pid + "/fd")) {
    std::error_code error;
    const std::string link =
        std::filesystem::read_symlink(each.path(), error).string();
    if (link.rfind("socket:[", 0) == 0) {
      inodes.push_back(link.substr(8, link.size() - 9));
    }
  }
  std::vector<Listener> listeners;
  for (const std::string table : {"tcp", "tcp6"}) {
    std::ifstream lines("/proc/" + pid + "/net/" + table);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream fields(line);
      std::vector<std::string> field(10);
      for (std::string& each : field) fields >> each;
      const bool listens = field[3] == "0A";
      const bool own =
          std::find(inodes.begin(), inodes.end(), field[9]) != inodes.end();
      if (!listens || !own) continue;
      const std::size_t colon = field[1].find(':');
      listeners.push_back({field[1].substr(0, colon),
                           std::stoi(field[1].substr(colon + 1), nullptr, 16)});
    }
  }
  return listeners;
}

// Sends `bytes` to a port and returns the open connection.
int send_to_port(int port, const std::string& bytes) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(
      ::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address),
      0);
  ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return socket;
}

TEST(Fault, StrangersAtThePortsOfTheLoopbackDoNotDisturb) {
  const Arguments steps{{"steps", "100"}};
  const auto bits = bits_of(Ranks("train", 3, steps).wait());
  Ranks running("train", 3, steps);
  std::vector<int> sockets;
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(running.wait_for_line(rank, "running: yes"));
  }
  int found = 0;
  for (const std::string& pid : children()) {
    for (const auto& [address, port] : listeners_of(pid)) {
      ++found;
      // 127.0.0.1, so other machines cannot connect.
      EXPECT_EQ(address, "0100007F");
      for (const std::size_t count : {0, 3, 8, 24, 5000}) {
        sockets.push_back(
            send_to_port(port, random_bytes(count, port + count)));
        ::close(send_to_port(port, random_bytes(count, port)));
      }
    }
  }
  EXPECT_GE(found, 4);  // the store, and Gloo on each rank
  EXPECT_EQ(bits_of(running.wait()), bits);
  for (const int each : sockets) ::close(each);
}

// Rank 1 fails in a step, and all ranks go on with what they have in memory.
// `where`: the two sets of arguments for the rounds that run at the same time.
void expect_recovery(const std::array<Arguments, 2>& where) {
  const Arguments steps{{"steps", "10"}};
  Arguments undisturbed = steps;
  undisturbed.insert(undisturbed.end(), where[0].begin(), where[0].end());
  const auto bits = bits_of(Ranks("recover", 3, undisturbed).wait());
  for (const std::string at : {"0", "6"}) {
    std::vector<Round> rounds;
    // With 700, rank 0 still serves the old world when the others reconnect.
    for (const std::string hold : {"0", "700"}) {
      std::vector<Arguments> arguments(3, steps);
      for (Arguments& each : arguments) {
        const Arguments& own = where[rounds.size()];
        each.insert(each.end(), own.begin(), own.end());
      }
      arguments[0].emplace_back("hold_ms", hold);
      for (const auto& each :
           Arguments{{"place", "backward"}, {"deed", "std"}, {"at", at}}) {
        arguments[1].push_back(each);
      }
      rounds.push_back({"step " + at + ", rank 0 late by " + hold + " ms",
                        "recover", arguments});
    }
    const auto all_results = run_rounds(rounds, seconds(60));
    for (std::size_t k = 0; k < rounds.size(); ++k) {
      SCOPED_TRACE(rounds[k].name);
      EXPECT_EQ(bits_of(all_results[k]), bits);
      for (const RankResult& each : all_results[k]) {
        EXPECT_EQ(said(each)["attempts"], "2");
      }
    }
  }
}

TEST(Fault, TrainingGoesOnInANewWorldAsIfNothingHadBeen) {
  expect_recovery({});
}

TEST(Fault, AndSoItDoesWhereALauncherServesTheStore) {
  // Rounds that follow each other use the same store. Rounds at the same time
  // must not.
  std::vector<c10::intrusive_ptr<c10d::TCPStore>> stores;
  std::array<Arguments, 2> where;
  for (Arguments& each : where) {
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    options.waitWorkers = false;
    stores.push_back(c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options));
    each = {{"at_port", std::to_string(stores.back()->getPort())}};
  }
  ::setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  expect_recovery(where);
  ::unsetenv("TORCHELASTIC_USE_AGENT_STORE");
}

// Returns whether a write to a pipe without a reader is an error.
bool is_broken_pipe_an_error() {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  const bool is_error = ::write(ends[1], "x", 1) == -1 && errno == EPIPE;
  ::close(ends[1]);
  return is_error;
}

const RankProgramEntry kPipe("pipe", [] {
  ::signal(SIGPIPE, SIG_DFL);
  const auto world = World::connect(world_options());
  return is_broken_pipe_an_error() ? 0 : 1;
});

volatile sig_atomic_t pipes_broken = 0;

const RankProgramEntry kHandledPipe("handled pipe", [] {
  ::signal(SIGPIPE, [](int) { pipes_broken = pipes_broken + 1; });
  const auto world = World::connect(world_options());
  return is_broken_pipe_an_error() && pipes_broken == 1 ? 0 : 1;
});

// Gloo makes such writes to a rank that has just died.
TEST(Fault, ABrokenPipeDoesNotEndTheProcess) {
  for (const auto& results :
       run_rounds({{"default action", "pipe", std::vector<Arguments>(2)},
                   {"handler", "handled pipe", std::vector<Arguments>(2)}},
                  seconds(30))) {
    for (const RankResult& each : results) {
      EXPECT_TRUE(each.ended && each.exit.ok())
          << to_string(each.exit) << each.out << each.err;
    }
  }
}

TEST(Fault, AForkIsRefusedAndDisturbsNobody) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not know forks";
#endif
  const auto results = Ranks("fork", 2).wait(seconds(60));
  for (const RankResult& each : results) {
    EXPECT_TRUE(each.ended && each.exit.ok())
        << to_string(each.exit) << each.out << each.err;
    EXPECT_EQ(said(each)["steps"], "4");
  }
  EXPECT_EQ(said(results[0])["fork"], "0");
}

TEST(Fault, ARankThatHasLeftIsNamed) {
  std::vector<Arguments> arguments(3);
  arguments[1] = {{"steps", "3"}};
  const auto results = Ranks("train", arguments).wait(seconds(30));
  EXPECT_TRUE(results[1].exit.ok()) << to_string(results[1].exit);
  for (const int rank : {0, 2}) {
    SCOPED_TRACE(rank_text(rank));
    expect_failed_in_order(results[rank]);
    auto words = said(results[rank]);
    EXPECT_EQ(words["type"], "PeerError");
    EXPECT_EQ(words["fault"], "has left") << words["text"];
    EXPECT_EQ(words["rank"], "1");
    EXPECT_EQ(words["grads"], "as before");
  }
}

TEST(Fault, WorldsMayFollowEachOtherAndLeaveNothing) {
  for (const RankResult& each : Ranks("again", 3).wait()) {
    EXPECT_TRUE(each.exit.ok()) << to_string(each.exit) << each.err;
    auto words = said(each);
    EXPECT_EQ(words["threads"], "0");
    EXPECT_LE(std::stoi(words["longest"]), 900);  // no rank waited for another
  }
}

}  // namespace
}  // namespace gpipe
