// The modules that a cell or a recomputed function calls, and the values that
// their buffers had at an earlier call.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace gpipe::internal {

// The version of a tensor at the construction of this object. LibTorch counts
// the changes of a tensor in place by its version. Does not keep the tensor's
// memory.
class WatchedVersion {
 public:
  WatchedVersion() = default;
  // Undefined and inference tensors have no version, and count as unchanged.
  explicit WatchedVersion(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    counter_ = tensor.unsafeGetTensorImpl()->version_counter();
    then_ = now();
  }

  // Returns whether the tensor has been changed in place since.
  bool is_changed() const { return now() != then_; }

  // Return the version at the construction and the present one; 0 for tensors
  // without version.
  uint32_t then() const { return then_; }
  uint32_t now() const {
    return counter_.enabled() ? counter_.current_version() : 0;
  }

 private:
  c10::VariableVersion counter_;
  uint32_t then_ = 0;
};

// Returns whether `tensor` is one of `tensors`.
bool contains(const std::vector<at::Tensor>& tensors, const at::Tensor& tensor);

// A buffer with a copy of its value of an earlier time.
struct BufferValue {
  at::Tensor buffer, value;
  WatchedVersion version{};  // of the buffer, at that time
  bool is_norm = false;      // among CalledModules::norm_buffers()

  // Returns whether the buffer has been changed since. LibTorch does not count
  // a change through Tensor::data() or set_data(). If `value` is defined, it is
  // found by another dtype or other sizes, and on the CPU by the bytes. On an
  // accelerator, to compare values would be to wait for the device.
  bool is_changed() const;
};

// Copy the present values of `buffers`, and write values back. Each takes one
// operator per dtype and device, however many buffers there are: a model may
// have hundreds, and on an accelerator the launch of a small copy takes longer
// than the copy. write_values() raises no versions: autograd may have saved the
// buffers for a backward, and must not see a change.
std::vector<BufferValue> copy_values(const std::vector<at::Tensor>& buffers);
void write_values(const std::vector<BufferValue>& values);

using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

// Modules, and whether each was in train mode at the construction.
class WatchedModes {
 public:
  WatchedModes() = default;
  explicit WatchedModes(std::shared_ptr<const Modules> modules);

  // Returns whether a module has another mode now.
  bool is_changed() const;
  // Sets each module to its mode again, without train() of a subclass.
  void restore() const;
  // Returns whether all modules are among `modules`.
  bool are_among(const Modules& modules) const;

 private:
  std::shared_ptr<const Modules> modules_;
  std::vector<bool> training_;
};

// The layers of a partition, or one module, with all submodules: their training
// modes, parameters, buffers and names. The lists are made once for a step, so
// that a micro-batch walks through no modules.
class CalledModules {
 public:
  // Adds a module and its submodules. `prefix`: what precedes the names of its
  // parameters and buffers, such as "3." for a layer of a Sequential.
  void add(std::string prefix, std::shared_ptr<torch::nn::Module> module);

  // Makes the lists again if the modules have other submodules, parameters or
  // buffers than at the last call or add().
  void find_again();
  // Returns how often that has happened.
  int64_t listings() const { return listings_; }

  // Returns the modules. find_again() makes another list, and leaves this one.
  std::shared_ptr<const Modules> modules() const { return modules_; }
  // Returns the modules that are there now.
  Modules modules_of_now() const;

  // Returns the parameters, including frozen ones.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

  // Returns the buffers of LibTorch's BatchNorm and InstanceNorm, and others
  // that a layer has passed to the operator of BatchNorm as running statistics.
  // In training, a forward changes them without raising their version.
  const std::vector<at::Tensor>& norm_buffers() const { return norm_buffers_; }
  // Adds the buffers among `statistics`, which operators have changed as such.
  void add_norm_buffers(const std::vector<at::Tensor>& statistics);

  // Returns whether `tensor` is a buffer of the modules.
  bool has_buffer(const at::Tensor& tensor) const {
    return contains(norm_buffers_, tensor) || contains(other_buffers_, tensor);
  }

  // Copies all buffers. Other buffers than norm_buffers() that have not changed
  // since the last call share the copies of that call, if these still live.
  std::vector<BufferValue> copy_buffers();

  // Returns whether copy_buffers() has found the buffer changed. It may have
  // its earlier value again.
  bool is_changing(const at::Tensor& buffer) const {
    return contains(changing_, buffer);
  }

  // Returns whether `tensor` shares memory with a buffer, which the next call
  // may change.
  bool has_memory_of_buffer(const at::Tensor& tensor) const;

  // Returns the name of a parameter or a buffer ("3.weight"), or "" if no
  // module has it.
  std::string name_of(const at::Tensor& tensor) const;

 private:
  void list(const torch::nn::Module& module);

  using WeakTensor =
      c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  // Null for tensors without storage. While it exists, no other storage has the
  // same address.
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  static WeakStorage memory_of(const at::Tensor& tensor);

  // The modules that were added, with their prefixes.
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>
      roots_;
  // Null before add(). Does not change while others have it.
  std::shared_ptr<Modules> modules_;
  // The tensors of each of them that have been listed.
  std::vector<std::vector<at::Tensor>> listed_;
  std::vector<at::Tensor> parameters_, norm_buffers_, other_buffers_, changing_;
  // The last copies of `other_buffers_`, or empty, with the versions and the
  // memory that the buffers had. A copy serves again while these are the same.
  struct Copied {
    WatchedVersion version;
    WeakStorage memory;
    WeakTensor copy;
  };
  std::vector<Copied> copies_;
  int64_t listings_ = 0;
};

// Gives buffers their values of an earlier call of some layers, for another
// call of these layers while in scope. The values of now come back at the end,
// without raising versions.
//
// So the memory of the buffers changes below autograd, although operators of
// the call may save a buffer for their backward. Whatever hooks keep in the
// scope must therefore go through to_save().
//
// Threads: the static functions may be called on any thread: a layer of the
// call may run a pipeline, whose workers save tensors. All other calls are on
// the thread of the constructor.
class PastBuffers {
 public:
  // Writes the values of `past`. Throws what a copy throws, and then has
  // restored the values of now where the device allows it.
  explicit PastBuffers(const std::vector<BufferValue>& past);
  ~PastBuffers();
  PastBuffers(const PastBuffers&) = delete;
  PastBuffers& operator=(const PastBuffers&) = delete;

  // Writes the values of now, before the destructor does. Throws what a copy
  // throws, and c10::Error if the call has given a buffer other memory: a graph
  // may have kept that memory.
  void restore();

  // Returns what a graph must keep of `tensor`: a copy if `tensor` shares
  // memory with a buffer of a scope, else `tensor`. If the tensor changes in
  // place between this call and the end of the scope, the version of the copy
  // rises at the end, so that the backward is refused as that of the plain
  // layers. Running statistics that no backward reads (UnreadStatistics) are
  // not copied.
  static at::Tensor to_save(const at::Tensor& tensor);

  // Returns whether `tensor` shares memory with a buffer of a scope.
  static bool has(const at::Tensor& tensor);

 private:
  struct Saved {
    WatchedVersion version;  // of the tensor
    at::Tensor copy;
  };
  void end() noexcept;
  // Returns the latest scope that has the memory of `tensor`, or null. Call it
  // with the mutex of all scopes.
  static PastBuffers* scope_of(const at::Tensor& tensor);

  const std::vector<BufferValue> now_;
  std::unordered_set<const c10::StorageImpl*> storages_;
  std::vector<Saved> saved_;
  bool restored_ = false;
};

}  // namespace gpipe::internal
