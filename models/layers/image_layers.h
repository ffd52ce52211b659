// Parts of the models for images: the input check, and the two ends of U-Net's
// long skip connections as layers.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cstdint>
#include <ostream>

#include "gpipe/skip.h"

namespace gpipe::models {

// Throws c10::ValueError, naming `model`, unless `input` is [batch, `channels`,
// height, width].
//
// Threads: pure function.
void check_images(const char* model, const at::Tensor& input, int64_t channels);

// The layers have no state except their names. They stash and pop on the thread
// that calls them.

// Stashes its input as "skip" in `ns`, and returns it.
class UNetStashImpl : public torch::nn::Cloneable<UNetStashImpl>,
                      public Skippable {
 public:
  explicit UNetStashImpl(const Namespace& ns);

  torch::Tensor forward(torch::Tensor x);

  void reset() override {}
  void pretty_print(std::ostream& stream) const override;
};
TORCH_MODULE(UNetStash);

// Pops "skip" from `ns` and returns [batch, channels of input + channels of
// skip, height of skip, width of skip]. An input smaller than the skip, which
// happens when an odd size was halved and doubled, is padded with zeros at the
// bottom and right.
//
// forward() throws c10::Error if nothing was stashed or if the batch sizes
// differ.
class UNetPopCatImpl : public torch::nn::Cloneable<UNetPopCatImpl>,
                       public Skippable {
 public:
  explicit UNetPopCatImpl(const Namespace& ns);

  torch::Tensor forward(torch::Tensor x);

  void reset() override {}
  void pretty_print(std::ostream& stream) const override;
};
TORCH_MODULE(UNetPopCat);

}  // namespace gpipe::models
