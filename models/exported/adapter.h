// Adapters of low rank (LoRA): an adapter beside a linear layer whose weight is
// frozen, and the hook that adds it to a torch::nn::Linear which other modules
// call themselves.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
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

// Returns `result` of a linear layer with scale B(A(dropout(input))) added, in
// the dtype of `result`. `a` has the size [rank, inputs], `b` has [outputs,
// rank]. Dropout acts in `training`. Source: Hu et al., LoRA, 2021. The
// operators and their order are those of PEFT's Linear, so the bits agree.
at::Tensor add_adapter(const AdapterSettings& settings, const at::Tensor& a,
                       const at::Tensor& b, bool training,
                       const at::Tensor& result, at::Tensor input);

// A and B of one linear module, and its weight.
class Adapter : public torch::nn::Module {
 public:
  // Draws A from the uniform distribution of torch::nn::Linear, and sets B to
  // zero. LibTorch's default generator advances as in PEFT. A and B have device
  // and dtype of `weight`, but float32 for dtypes of 16 bits, to which A is
  // rounded as in PEFT.
  Adapter(AdapterSettings settings, at::Tensor weight);

  // Adds the adapter to the weight, in place, as PEFT's merge() does.
  void merge();

  const AdapterSettings& settings() const { return settings_; }
  const at::Tensor& a() const { return a_; }
  const at::Tensor& b() const { return b_; }
  void pretty_print(std::ostream& stream) const override;

 private:
  const AdapterSettings settings_;
  at::Tensor weight_, a_, b_;
};

// Returns whether attach() takes `linear`: whether its weight belongs to no
// placed module and to no backend with data of its own.
bool can_attach(const torch::nn::LinearImpl& linear);

// From now on a forward of `linear` adds the adapter's output. `adapter`
// becomes the module "lora" of `linear`. Modules that contain `linear`, also as
// a typed member, need no change.
//
// LinearImpl::forward() is not virtual, so a kernel of LibTorch's dispatcher
// does it: the weight carries a tag, and the kernel runs in front of the
// products with a tagged weight. It also acts where other code passes the
// weight to torch::nn::functional::linear(), torch::linear(), or as
// weight.t() to torch::addmm() or torch::matmul(). It does not act on other
// products, such as torch::mm() or torch::einsum(). Module::to() keeps the tag,
// and clone() throws. Module::load() and Tensor::set_data() may lose it: use
// load_state_dict() (models/weights/state_dict.h).
//
// Throws c10::Error if two copies of gpipe are in the process, and this is not
// the first one. Threads: no other thread may use `linear`.
void attach(torch::nn::LinearImpl& linear, std::shared_ptr<Adapter> adapter);

// Undoes attach().
void detach(torch::nn::LinearImpl& linear);

}  // namespace gpipe::adapters
