// Ranks that train a small model and fail as a test tells them, on the devices
// of gpipe/testing/devices.h. Accelerators use direct transfers.
//
// Arguments of the rank program "train" (see ranks.h), of one rank or of all:
//   place, at, deed, ms  the rank does `deed` once, at `place` of step `at`: in
//                        "forward", "loss", "backward", at a fault point, or
//                        where a test calls act()
//   steps                the number of steps; without it, there is no end
//   hold_ms              how long the rank keeps the world after a failure
//   layers, balance, inner, dtype, checkpoint, schedule, input_rows,
//   target_rows, returns  a model, options or data of this rank's own
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/world.h"

namespace gpipe::testing {

using Arguments = Ranks::Arguments;

// The exit code of a rank that has failed and has said why.
constexpr int kFailedAsTold = 3;
// The text of the exceptions that ranks are told to throw.
constexpr char kFaultText[] = "the dog has eaten it";

// ---- In a rank. ----

constexpr int64_t kWidth = 16, kRows = 8;
constexpr int kMicrobatches = 4;

// The step that this rank is in.
extern int64_t step_now;

// Does what the arguments of this rank say for `place` in this step, once.
void act(const std::string& place);

// Prints a line for said().
void say(const std::string& key, const std::string& value);
// Prints what an exception is, and when it was caught.
void say_exception(const std::exception_ptr& exception);

// Returns the ms of a clock that all processes of this machine share.
int64_t now_ms();

// The layers, two for each rank, and the state of their training. They outlive
// a world.
struct Trainee {
  explicit Trainee(int ranks);
  torch::nn::Sequential layers;
  torch::optim::SGD optimizer;
};
DistributedPipeline make_pipeline(const Trainee& trainee,
                                  const std::shared_ptr<World>& world);
StepResult train_step(DistributedPipeline& pipeline);
// Trains for the number of steps in the arguments, and prints a checksum of the
// parameters. Prints and rethrows the exception of a step.
void train(const std::shared_ptr<World>& world, Trainee& trainee);
// Connects with the result of `options`, and trains. Prints an exception.
// Returns the exit code.
int train_as_told(const std::function<WorldOptions()>& options = world_options);

// ---- In the test. ----

std::string rank_text(int rank);
Arguments join(Arguments arguments, const Arguments& more);

// What a rank has printed, by key; of equal keys the first.
using Words = std::map<std::string, std::string>;
Words said(const RankResult& result);

// Expects that a rank has ended by itself, without a signal, with a failure.
// Returns said().
Words expect_failed_in_order(const RankResult& result);
// Expects the same, and that the failure is a PeerError with this fault of rank
// `at_fault`.
Words expect_peer_error(const RankResult& result, const std::string& fault,
                        int at_fault);
// Expects that all went well. Returns the checksums of the parameters, by rank.
std::vector<std::string> bits_of(const std::vector<RankResult>& results);

// A run of a rank program.
struct Round {
  std::string name, program;
  std::vector<Arguments> arguments;  // by rank
};
// Runs the rounds in order and returns the results of each. Several rounds run
// at the same time, because ranks mostly wait for each other. `limit` is the
// limit for each round.
std::vector<std::vector<RankResult>> run_rounds(
    const std::vector<Round>& rounds, std::chrono::seconds limit);

}  // namespace gpipe::testing
