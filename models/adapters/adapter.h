// An adapter of low rank beside a linear layer whose weight is frozen (LoRA).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <iosfwd>
#include <string>

namespace gpipe::adapters {

// What an adapter belongs to, and its numbers.
struct AdapterSettings {
  std::string name;       // of the linear module: "model.layers.0.mlp.up_proj"
  std::string file_name;  // the same in files of PEFT
  int64_t inputs = 0, outputs = 0;
  int64_t rank = 0;
  double scale = 1;
  double dropout = 0;
  // The base weight has the size [inputs, outputs], as that of GPT-2's Conv1D.
  // Otherwise it has the size [outputs, inputs].
  bool transposed = false;
};

// Returns the scale of adapters with these options.
double scale_of(int64_t rank, double alpha, bool rank_stabilized);

// Returns what merging adds to a weight, as PEFT computes it: scale B A.
// `transposed`: of the size [inputs, outputs].
at::Tensor delta_of(at::Tensor a, at::Tensor b, double scale, bool transposed);

// Adds scale B(A(dropout(x))) to the result of a linear layer. A has the size
// [rank, inputs], B has [outputs, rank]. Source: Hu et al., LoRA, 2021. The
// operators and their order are those of PEFT's Linear, so the bits agree.
class Adapter : public torch::nn::Module {
 public:
  // Draws A from the uniform distribution of torch::nn::Linear, and sets B to
  // zero. LibTorch's default generator advances as in PEFT. `base`: the weight;
  // undefined if only its owner can merge the adapter. `like`: a tensor with
  // device and dtype of the weight. A and B have this dtype, but float32 for
  // dtypes of 16 bits.
  Adapter(AdapterSettings settings, at::Tensor base, const at::Tensor& like);

  // Returns `result` with the adapter's output for the layer's input `input`
  // added, in the dtype of `result`.
  at::Tensor forward(const at::Tensor& result, at::Tensor input);

  // Adds the adapter to the base weight, in place, as PEFT's merge() does.
  // Throws c10::ValueError if there is no base weight.
  void merge();

  const AdapterSettings& settings() const { return settings_; }
  // Whether merge() works.
  bool has_base() const { return base_.defined(); }
  const at::Tensor& a() const { return a_; }
  const at::Tensor& b() const { return b_; }
  void pretty_print(std::ostream& stream) const override;

 private:
  const AdapterSettings settings_;
  at::Tensor base_, a_, b_;
};

}  // namespace gpipe::adapters
