// Adapters of torch::nn::Linear, for modules that call it themselves.
#pragma once

#include <torch/nn/modules/linear.h>

#include <memory>

#include "models/adapters/adapter.h"

namespace gpipe::adapters {

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
