#include "training/program/precision.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include "models/testing/files.h"
#include "models/weights/safetensors.h"
#include "models/weights/state_dict.h"
#include "training/program/initial_weights.h"

namespace gpipe::train_program {
namespace {

torch::nn::Sequential half_model() {
  return torch::nn::Sequential(torch::nn::Linear(3, 4),
                               torch::nn::BatchNorm1d(4));
}

TEST(PrecisionTest, Bfloat16IsForAllThatIsNoCounter) {
  auto converted = half_model();
  const at::Tensor weight = converted->parameters().front();
  precision_of("bfloat16").convert(converted);
  const StateDict dict = state_dict(*converted);
  for (const auto& item : dict) {
    const bool counts = item.key() == "1.num_batches_tracked";
    EXPECT_EQ(item.value().scalar_type(), counts ? at::kLong : at::kBFloat16)
        << item.key();
  }
  EXPECT_EQ(weight.scalar_type(), at::kBFloat16);  // the same tensor
  EXPECT_TRUE(weight.requires_grad());

  // A run in float32 can load these weights.
  const std::string path = gpipe::testing::new_folder() + "w.safetensors";
  write_safetensors(path, dict);
  auto other = half_model();
  ModelSource source("unet");  // torchvision has no names for it
  EXPECT_EQ(load_initial_weights(other, source, path, "").line,
            "7 of 7 tensors loaded from " + path);
}

}  // namespace
}  // namespace gpipe::train_program
