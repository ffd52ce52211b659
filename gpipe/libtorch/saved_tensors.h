// What gpipe's autograd engine adds: hooks on the tensors that autograd saves
// for a backward, which LibTorch serves for Python only, and gradients that
// backwards leave as they are. Also, a backward that is not called within
// another one throws a std::exception only when no thread runs a node of it any
// more.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace gpipe::internal {

// A source of hooks, one for each tensor that an operator saves.
class SavedTensorHooks {
 public:
  virtual ~SavedTensorHooks() = default;
  // Returns the hooks of the next saved tensor. LibTorch calls their
  // call_pack_hook() once, with the tensor, and call_unpack_hook() whenever the
  // backward needs the tensor. It destroys them with the saved tensor.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> next() = 0;
};

// Gives tensors that operators on this thread save the hooks of `source` while
// in scope. `source`: null for no hooks. Scopes may be nested; the innermost
// one counts. Operators of a backward that runs inside the scope have no hooks:
// on accelerators, they run on another thread.
//
// A program that links this file runs its backwards in a subclass of LibTorch's
// autograd engine, since LibTorch asks the engine for the hooks. Throws
// c10::Error if another engine runs: one that was installed before this file
// was loaded, such as that of LibTorch's Python bindings or of another copy of
// gpipe, or since then.
class SavedTensorScope {
 public:
  explicit SavedTensorScope(SavedTensorHooks* source);
  ~SavedTensorScope();
  // Returns whether gpipe's autograd engine runs, so that the constructor does
  // not throw.
  static bool is_available();
  // Returns the source of this thread, or null.
  static SavedTensorHooks* current();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

 private:
  SavedTensorHooks* const outer_;
  const void* const outer_node_;
};

// A second call of a function. Backwards that the function runs on this thread
// while in scope add to gradients that begin undefined, and at the end each
// leaf has the gradient of before: the first call has counted. Has no effect if
// another engine runs.
// Threads: no other thread may add to the gradients of the same leaves.
class GradsOfNow {
 public:
  GradsOfNow();
  ~GradsOfNow();
  GradsOfNow(const GradsOfNow&) = delete;
  GradsOfNow& operator=(const GradsOfNow&) = delete;

  // Sets the gradients aside of all leaves that a backward from `roots` may
  // reach. Called by the engine.
  void set_aside(const torch::autograd::edge_list& roots);

 private:
  GradsOfNow* const outer_;
  std::vector<std::pair<at::Tensor, at::Tensor>> grads_;  // with their leaves
};

// Calls `look` while no backward adds to gradients (`.grad`) in this process,
// other than those that layers of a pipeline run, and returns the number of
// such backwards that have ended. If one runs, returns nullopt without a call.
// The numbers of two calls are equal if none ran between the calls. If another
// engine runs, no backward counts.
// Threads: any. Backwards that begin meanwhile wait for `look`.
std::optional<int64_t> between_additions(const std::function<void()>& look);

}  // namespace gpipe::internal
