// Copies of buffers, which can be put back.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace gpipe::internal {

// The values that some buffers had when this object was made. Each direction
// takes one operator per dtype and device, however many buffers there are: a
// model may have hundreds, and on an accelerator the launch of a small copy
// takes longer than the copy.
class BufferCopies {
 public:
  explicit BufferCopies(const std::vector<at::Tensor>& buffers);

  // Copies the values back without raising versions: autograd may have saved a
  // buffer for the backward of another cell and must not see a change.
  void put_back() const;

 private:
  // Buffers of one dtype and device, with their values.
  struct Group {
    std::vector<at::Tensor> buffers, values;
  };
  std::vector<Group> groups_;
};

}  // namespace gpipe::internal
