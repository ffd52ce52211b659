#include "gpipe/distributed/testing/faulty_ranks.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <deque>
#include <iostream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "gpipe/base/crc32c.h"
#include "gpipe/distributed/channel/message.h"
#include "gpipe/distributed/transfers.h"
#include "gpipe/runtime/device/test_hooks.h"
#include "gpipe/schedule.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/models.h"

namespace gpipe::testing {

int64_t step_now = 0;

namespace {

using std::chrono::milliseconds;
using torch::Tensor;
namespace nn = torch::nn;

int64_t number(const std::string& name, int64_t otherwise) {
  const std::string text = argument(name);
  return text.empty() ? otherwise : std::stoll(text);
}

}  // namespace

void act(const std::string& place) {
  static std::atomic<bool> acted{false};
  if (argument("place") != place || number("at", 0) != step_now ||
      acted.exchange(true)) {
    return;
  }
  const std::string deed = argument("deed");
  if (deed == "std") throw std::runtime_error(kFaultText);
  if (deed == "c10") TORCH_CHECK_NOT_IMPLEMENTED(false, kFaultText);
  if (deed == "other") throw 42;
  const c10::SourceLocation here{__func__, __FILE__, __LINE__};
  if (deed == "memory") throw c10::OutOfMemoryError(here, kFaultText);
  // The error of another world than the pipeline's.
  if (deed == "peer") {
    throw PeerError(here, {Fault::kDied, 0, 0, "", ""}, kFaultText);
  }
  if (deed == "sleep")
    std::this_thread::sleep_for(milliseconds(number("ms", 0)));
  if (deed == "die") std::raise(SIGKILL);
  if (deed == "freeze") std::raise(SIGSTOP);
}

namespace {

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

// Returns a model with two layers for each rank.
nn::Sequential make_model(int ranks) {
  torch::manual_seed(3);
  const int64_t inner = number("inner", kWidth);
  nn::Sequential model;
  for (int r = 0; r < ranks; ++r) {
    model->push_back(
        nn::Linear(r == 0 ? kWidth : inner, r == ranks - 1 ? kWidth : inner));
    const bool named = argument("layers") == "named" && r == ranks - 1;
    model->push_back(named ? "head" : std::to_string(2 * r + 1), Actor());
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

Schedule schedule_of(const std::string& name, int ranks) {
  if (name == "other") return fill_drain(ranks, kMicrobatches);
  Schedule schedule = one_forward_one_backward(ranks, kMicrobatches);
  if (name != "offload") return schedule;
  return with_offload(std::move(schedule), [](int, int) { return true; });
}

// Returns a checksum of the parameters of this rank.
std::string bits_of(nn::Module& module) {
  uint32_t crc = 0;
  for (const Tensor& each : module.parameters()) {
    const Tensor bytes = internal::bytes_of(each.detach().cpu());
    crc = internal::crc32c(bytes.const_data_ptr(), bytes.numel(), crc);
  }
  return std::to_string(crc);
}

}  // namespace

void say(const std::string& key, const std::string& value) {
  std::string line = value;
  for (char& each : line) {
    if (each == '\n') each = ' ';
  }
  std::cout << key + ": " + line + "\n" << std::flush;
}

static void say_error(const std::string& type, const std::string& text) {
  say("type", type);
  say("text", text);
}

void say_exception(const std::exception_ptr& exception) {
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
    say_error("NotImplementedError", error.what_without_backtrace());
  } catch (const c10::ValueError& error) {
    say_error("ValueError", error.what_without_backtrace());
  } catch (const c10::OutOfMemoryError& error) {
    say_error("OutOfMemoryError", error.what_without_backtrace());
  } catch (const c10::DistNetworkError& error) {
    say_error("DistNetworkError", error.what_without_backtrace());
  } catch (const c10::Error& error) {
    say_error("c10::Error", error.what_without_backtrace());
  } catch (const std::runtime_error& error) {
    say_error("runtime_error", error.what());
  } catch (const std::exception& error) {
    say_error("std::exception", error.what());
  } catch (int value) {
    say("type", "int");
    say("text", std::to_string(value));
  }
}

int64_t now_ms() {
  return std::chrono::duration_cast<milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Trainee::Trainee(int ranks)
    : layers(make_model(ranks / static_cast<int>(number("replicas", 1)))),
      optimizer(layers->parameters(),
                torch::optim::SGDOptions(0.1).momentum(0.9)) {}

DistributedPipeline make_pipeline(const Trainee& trainee,
                                  const std::shared_ptr<World>& world) {
  const c10::Device own = device(world->rank());
  const int64_t replicas = number("replicas", 1);
  const auto options =
      DistributedOptions(balance_of(static_cast<int>(world->size() / replicas)))
          .data_parallel(replicas)
          .collective_sums(true)
          .checkpoint(checkpoint_of(argument("checkpoint")))
          .device(own)
          .transfers(own.is_cpu() ? Transfers::kHost : Transfers::kDirect)
          .threads_per_partition(1);
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
  const Tensor input = torch::randn({number("input_rows", kRows), kWidth}, type)
                           .to(pipeline->device());
  const Tensor target =
      torch::randn({number("target_rows", kRows), kWidth}, type)
          .to(pipeline->device());
  return pipeline->train_step(input, target, mean_square,
                              schedule_of(argument("schedule"), ranks));
}

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
      say_exception(std::current_exception());
      const bool same = difference(grads, grads_of(*pipeline)).empty();
      say("grads", same ? "as before" : "changed");
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

int train_as_told(const std::function<WorldOptions()>& options) {
  try {
    const auto world = World::connect(options());
    Trainee trainee(world->size());
    train(world, trainee);
  } catch (...) {
    // If train() has printed the exception already, the test uses that one.
    say_exception(std::current_exception());
    return kFailedAsTold;
  }
  return 0;
}

const RankProgramEntry kTrain("train", [] {
  torch::set_num_threads(1);
  say("pid", std::to_string(getpid()));
  const std::string place = argument("place");
  if (place.rfind("message", 0) == 0 || place == "offload" ||
      place == "reload") {
    internal::set_fault_hook(
        [](const char* site, int64_t, int64_t) { act(site); });
  }
  return train_as_told();
});

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

Arguments join(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

Words said(const RankResult& result) {
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

Words expect_failed_in_order(const RankResult& result) {
  EXPECT_TRUE(result.ended);
  EXPECT_EQ(result.exit.code, kFailedAsTold) << to_string(result.exit) << "\n"
                                             << result.out << result.err;
  return said(result);
}

Words expect_peer_error(const RankResult& result, const std::string& fault,
                        int at_fault) {
  Words words = expect_failed_in_order(result);
  EXPECT_EQ(words["type"], "PeerError");
  EXPECT_EQ(words["fault"], fault) << words["text"];
  EXPECT_EQ(words["rank"], std::to_string(at_fault)) << words["text"];
  return words;
}

std::vector<std::string> bits_of(const std::vector<RankResult>& results) {
  expect_all_ok(results);
  std::vector<std::string> bits;
  for (const RankResult& each : results) {
    bits.push_back(said(each)["bits"]);
    EXPECT_NE(bits.back(), "");
  }
  return bits;
}

std::vector<std::vector<RankResult>> run_rounds(
    const std::vector<Round>& rounds, std::chrono::seconds limit) {
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

}  // namespace gpipe::testing
