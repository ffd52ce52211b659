// Whether a module lives still, since another one may come to lie at its
// address.
#pragma once

#include <torch/nn/module.h>

#include <memory>

namespace gpipe::placement {

// Keeps nothing alive. One at a time for each module; its making is not for
// while somebody else makes a shared_ptr of the module.
class Witness {
 public:
  explicit Witness(const torch::nn::Module& module);

  // False once the module is destroyed, whatever of its children and tensors is
  // left. Also false once a module that nobody owned (on the stack, a member,
  // in a unique_ptr, within its constructor) has got a shared_ptr.
  bool lives() const { return !life_.expired(); }

 private:
  std::weak_ptr<const void> life_;
};

}  // namespace gpipe::placement
