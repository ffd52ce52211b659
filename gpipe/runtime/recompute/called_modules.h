// The modules that a cell or a recomputed function calls.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/runtime/recompute/watched_version.h"

namespace gpipe::internal {

// A buffer before a call, with a copy of its value.
struct BufferValue {
  at::Tensor buffer;
  WatchedVersion version;
  at::Tensor value;
  bool is_norm;  // among CalledModules::norm_buffers()
};

// The layers of a partition, or one module, with all submodules: their training
// modes, parameters, buffers and names. The lists are made once, so that a
// micro-batch walks through no modules.
class CalledModules {
 public:
  // Adds a module and its submodules. `prefix`: what precedes the names of its
  // parameters and buffers, such as "3." for a layer of a Sequential.
  void add(std::string prefix, std::shared_ptr<torch::nn::Module> module);

  // Returns for each module whether it is in train mode.
  std::vector<bool> training() const;

  // Returns the parameters, including frozen ones.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

  // Returns the buffers of LibTorch's BatchNorm and InstanceNorm, and others
  // that a layer has passed to the operator of BatchNorm as running statistics.
  // In training, a forward changes them without raising their version.
  const std::vector<at::Tensor>& norm_buffers() const { return norm_buffers_; }
  bool is_norm_buffer(const at::Tensor& buffer) const;
  // Adds the buffers among `statistics`, which operators have changed as such.
  void add_norm_buffers(const std::vector<at::Tensor>& statistics);

  // Copies all buffers. Other buffers than norm_buffers() that have not changed
  // since the last call share the copies of that call, if these still live.
  std::vector<BufferValue> copy_buffers();

  // Returns the name of a parameter or a buffer ("3.weight"), or "" if no
  // module has it.
  std::string name_of(const at::Tensor& tensor) const;

 private:
  using WeakTensor =
      c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  // The modules that were added, with their prefixes.
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>
      roots_;
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<at::Tensor> parameters_, norm_buffers_, other_buffers_;
  // The last copies of `other_buffers_`, or empty.
  std::vector<std::pair<WatchedVersion, WeakTensor>> copies_;
};

}  // namespace gpipe::internal
