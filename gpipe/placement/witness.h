// Detects whether a module still exists, since a new module may get the same
// address.
#pragma once

#include <torch/nn/module.h>

#include <memory>

namespace gpipe::placement {

// A weak reference to a module. Keeps nothing alive.
//
// Threads: a module may have one Witness at a time. Do not construct it while
// another thread makes a shared_ptr of the module.
class Witness {
 public:
  explicit Witness(const torch::nn::Module& module);

  // Returns false once the module is destroyed, even if its children and
  // tensors still exist. Also returns false once a module without an owner (on
  // the stack, a member, in a unique_ptr, in its constructor) has got a
  // shared_ptr.
  bool lives() const { return !life_.expired(); }

 private:
  std::weak_ptr<const void> life_;
};

}  // namespace gpipe::placement
