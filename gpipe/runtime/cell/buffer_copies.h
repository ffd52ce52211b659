// Copies of buffers, which can be put back without a trace in autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace gpipe::internal {

// Copies `value` into `tensor` without raising its version: autograd may have
// saved the tensor for a backward and must not see a change.
void write_below_autograd(at::Tensor tensor, const at::Tensor& value);

// The values that some buffers had when this object was made. Each direction
// takes one operator per dtype and device, however many buffers there are: a
// model may have hundreds, and on an accelerator the launch of a small copy
// takes longer than the copy.
class BufferCopies {
 public:
  explicit BufferCopies(const std::vector<at::Tensor>& buffers);

  // Copies the values back without raising versions, as write_below_autograd().
  void put_back() const;

 private:
  // Buffers of one dtype and device, with their values.
  struct Group {
    std::vector<at::Tensor> buffers, values;
  };
  std::vector<Group> groups_;
};

}  // namespace gpipe::internal
