// Tests pipelines whose cells run one at a time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/phase.h"
#include "gpipe/schedule.h"
#include "gpipe/testing/layers.h"

namespace gpipe {
namespace {

using ::testing::ElementsAre;
using torch::Tensor;

// The events in the layers, in order. Has no lock: `busy` and TSan detect cells
// that run at the same time.
struct Log {
  std::vector<std::string> lines;
  std::atomic<int> busy{0};
  bool overlapped = false;
};

struct NoteImpl : torch::nn::Module {
  NoteImpl(Log* log, int64_t layer) : log(log), layer(layer) {}
  Tensor forward(const Tensor& x) {
    if (layer == fails_at) throw std::runtime_error("as told");
    note("F");
    return testing::on_backward(x, [this](Tensor grad) {
      note("B");
      return grad;
    });
  }
  void note(const char* kind) {
    if (log->busy++ != 0) log->overlapped = true;
    log->lines.push_back(std::to_string(layer) +
                         (is_recomputing() ? "R" : kind) +
                         std::to_string(current_microbatch().value()));
    --log->busy;
  }
  Log* log;
  int64_t layer;
  int64_t fails_at = -1;
};
TORCH_MODULE(Note);

GPipe make(Log* log, int64_t layers, int64_t chunks, Checkpoint mode) {
  torch::nn::Sequential model;
  for (int64_t k = 0; k < layers; ++k) model->push_back(Note(log, k));
  return GPipe(model, GPipeOptions(std::vector<int64_t>(layers, 1))
                          .chunks(chunks)
                          .checkpoint(mode)
                          .one_at_a_time(true));
}

TEST(OneAtATime, RunsCellsInTheOrderOfTheClock) {
  Log log;
  GPipe pipeline = make(&log, 3, 2, Checkpoint::kNever);
  const Tensor output = pipeline->forward(torch::ones({4, 1}).requires_grad_());
  output.sum().backward();
  EXPECT_THAT(log.lines,
              ElementsAre("0F0", "0F1", "1F0", "1F1", "2F0", "2F1",  //
                          "2B1", "1B1", "2B0", "0B1", "1B0", "0B0"));
}

TEST(OneAtATime, NeverRunsTwo) {
  Log log;
  GPipe pipeline = make(&log, 8, 16, Checkpoint::kExceptLast);
  const Tensor input = torch::ones({32, 1}).requires_grad_();
  for (int k = 0; k < 20; ++k) pipeline->forward(input).sum().backward();
  EXPECT_FALSE(log.overlapped);
  EXPECT_EQ(log.lines.size(), 20u * 8 * (16 + 15 + 16));
}

TEST(OneAtATime, IsTheSameInEveryRun) {
  Log first, second;
  const auto step = [](Log* log) {
    GPipe pipeline = make(log, 4, 8, Checkpoint::kAlways);
    pipeline->train_step(
        torch::ones({8, 1}).requires_grad_(), torch::ones({8, 1}),
        [](const Tensor& output, const Tensor&) { return output.mean(); },
        one_forward_one_backward(4, 8));
  };
  step(&first);
  step(&second);
  EXPECT_EQ(first.lines, second.lines);
}

TEST(OneAtATime, AnExceptionEndsTheStepAndNoMore) {
  Log log;
  GPipe pipeline = make(&log, 3, 4, Checkpoint::kNever);
  auto& note = *pipeline[1]->as<NoteImpl>();
  note.fails_at = 1;
  EXPECT_THROW(pipeline->forward(torch::ones({4, 1})), std::runtime_error);
  EXPECT_THAT(log.lines, ElementsAre("0F0", "0F1"));
  note.fails_at = -1;
  EXPECT_EQ(pipeline->forward(torch::ones({4, 1})).size(0), 4);
}

TEST(OneAtATime, ValuesAreThoseOfCellsAtTheSameTime) {
  const auto run = [](bool one_at_a_time) {
    torch::manual_seed(0);
    torch::nn::Sequential model(torch::nn::Linear(4, 8), torch::nn::ReLU(),
                                torch::nn::Dropout(0.5),
                                torch::nn::Linear(8, 2));
    GPipe pipeline(
        model, GPipeOptions({1, 1, 2}).chunks(4).one_at_a_time(one_at_a_time));
    pipeline->forward(torch::rand({8, 4})).sum().backward();
    std::vector<Tensor> grads;
    for (const Tensor& each : pipeline->parameters()) {
      grads.push_back(each.grad());
    }
    return grads;
  };
  const auto serial = run(true), parallel = run(false);
  for (std::size_t k = 0; k < serial.size(); ++k) {
    EXPECT_TRUE(torch::equal(serial[k], parallel[k]));
  }
}

}  // namespace
}  // namespace gpipe
