// Tests that tangents of forward-mode AD are either computed or an error.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <string>
#include <tuple>

#include "gpipe/checkpoint.h"
#include "gpipe/gpipe.h"
#include "gpipe/placement.h"
#include "gpipe/recomputed.h"
#include "gpipe/schedule.h"
#include "gpipe/testing/layers.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;
using testing::mean_square;
using ::testing::ThrowsMessage;
using torch::Tensor;
using torch::autograd::ForwardADLevel;
using torch::nn::Linear;
using torch::nn::Sequential;
using torch::nn::Tanh;

// A dual level, as torch.autograd.forward_ad.dual_level() opens it.
class DualLevel {
 public:
  DualLevel() : index_(ForwardADLevel::get_next_idx()) {}
  ~DualLevel() { ForwardADLevel::release_idx(index_); }
  DualLevel(const DualLevel&) = delete;
  DualLevel& operator=(const DualLevel&) = delete;

 private:
  const uint64_t index_;
};

Tensor dual(const Tensor& tensor) {
  return at::_make_dual(tensor, torch::ones_like(tensor), /*level=*/0);
}

Tensor tangent_of(const Tensor& tensor) {
  return std::get<1>(at::_unpack_dual(tensor, /*level=*/0));
}

Sequential small_model() {
  torch::manual_seed(1);
  return Sequential(Linear(3, 4), Tanh(), Linear(4, 2));
}

GPipe pipeline_of(const Sequential& layers, Checkpoint checkpoint) {
  return GPipe(layers, GPipeOptions({2, 1})
                           .devices({torch::kCPU, torch::kCPU})
                           .chunks(2)
                           .checkpoint(checkpoint));
}

void expect_refused(const std::string& what, const std::function<void()>& run) {
  EXPECT_THAT(run, ThrowsMessage<c10::NotImplementedError>(
                       HasSubstr(what + " has a tangent (forward-mode AD)")));
}

TEST(ForwardAD, ATangentOfTheInputIsAnError) {
  const DualLevel level;
  const Tensor x = dual(torch::ones({4, 3})), y = torch::zeros({4, 2});
  // By micro-batch: a kernel may round otherwise for another number of rows.
  const Tensor each = small_model()->forward(torch::ones({2, 3}));
  const Tensor expected = torch::cat({each, each});
  for (const auto mode : {Checkpoint::kNever, Checkpoint::kAlways}) {
    GPipe pipeline = pipeline_of(small_model(), mode);
    expect_refused("the input", [&] { pipeline->forward(x); });
    expect_refused("the input", [&] {
      const torch::NoGradGuard no_grad;
      pipeline->forward(x);
    });
    expect_refused("the input", [&] {
      pipeline->forward(Microbatches<Tensor>{{torch::ones({4, 3}), x}});
    });
    expect_refused("the input", [&] {
      pipeline->train_step(x, y, mean_square, one_forward_one_backward(2, 2));
    });
    // The primal is fine.
    EXPECT_TRUE(
        pipeline->forward(std::get<0>(at::_unpack_dual(x, 0))).equal(expected));
  }
}

TEST(ForwardAD, ATangentOfAParameterOrATargetIsAnError) {
  const DualLevel level;
  const Tensor x = torch::ones({4, 3}), y = torch::zeros({4, 2});
  for (const auto mode : {Checkpoint::kNever, Checkpoint::kAlways}) {
    GPipe pipeline = pipeline_of(small_model(), mode);
    expect_refused("an output of the layers", [&] {
      pipeline->train_step(x, dual(y), mean_square,
                           one_forward_one_backward(2, 2));
    });
    const Tensor weight = pipeline->parameters()[0];
    weight._set_fw_grad(torch::ones_like(weight), /*level=*/0,
                        /*is_inplace_op=*/false);
    expect_refused("an output of the layers", [&] { pipeline->forward(x); });
    expect_refused("an output of the layers", [&] {
      pipeline->train_step(x, y, mean_square, one_forward_one_backward(2, 2));
    });
  }
}

TEST(ForwardAD, PassesThroughCheckpointedFunctionsAndPlacedModules) {
  const DualLevel level;
  const Tensor x = dual(torch::ones({4, 3}));
  Sequential plain = small_model();
  const Tensor expected = tangent_of(plain->forward(x));
  ASSERT_GT(expected.norm().item<double>(), 0.1);
  const Tensor checkpointed =
      checkpoint([&](const Tensor& in) { return plain->forward(in); }, x);
  EXPECT_TRUE(tangent_of(checkpointed).equal(expected));
  checkpointed.sum().backward();
  EXPECT_TRUE(plain->parameters()[0].grad().defined());
  Recomputed again(small_model());
  EXPECT_TRUE(tangent_of(again->forward(x)).equal(expected));
  Sequential placed = small_model();
  parallelize_module(placed, "cpu");
  EXPECT_TRUE(tangent_of(placed->forward(x)).equal(expected));
}

}  // namespace
}  // namespace gpipe
