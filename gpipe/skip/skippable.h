// Layers that stash or pop skip tensors, the store of these tensors, and the
// check that the stashes and pops of a model match.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/skip/layout.h"

namespace gpipe {

// ---- The base class of layers that stash or pop skip tensors.

// A base class (mixin) for layers with skip tensors: a layer passes a tensor to
// a later layer without passing it through the layers between them. In a
// pipeline the tensor goes directly from the stashing partition to the popping
// partition, and its gradient goes directly back.
//
//   struct StashImpl : torch::nn::Module, gpipe::Skippable {
//     StashImpl() : Skippable({/*stash=*/{"1to3"}, /*pop=*/{}}) {}
//     torch::Tensor forward(torch::Tensor x) { stash("1to3", x); return x; }
//   };
//
// Each forward must stash and pop exactly the declared names. The layers also
// work in a plain torch::nn::Sequential, on any thread. There, each thread
// keeps its own tensors between stash and pop.
//
// Shapes: any, also integer tensors. In a pipeline a stashed tensor belongs to
// one micro-batch. Threads: one thread at a time may call a layer. The idea is
// torchgpipe's @skippable (arXiv 2004.09910, section 3.3).
class Skippable {
 public:
  virtual ~Skippable() = default;

  // Moves all declared names, or those in `only`, into `ns`, so that layers of
  // the same type do not exchange tensors by accident. Throws c10::Error if
  // `only` contains a name that is not declared.
  void isolate(const Namespace& ns);
  void isolate(const Namespace& ns, const std::vector<std::string>& only);

  // Returns the declared names with their namespaces, in the order of
  // declaration.
  std::vector<SkipKey> stashable() const;
  std::vector<SkipKey> poppable() const;

 protected:
  // The names that a layer declares to stash and to pop.
  struct Names {
    std::vector<std::string> stash, pop;
  };
  // Declares `names`. Each forward must stash and pop each of them once.
  explicit Skippable(Names names);

  // Declares more names, before the layer becomes a part of a pipeline.
  void declare(const Names& more);

  // Passes `tensor` to the layer that pops `name`. nullopt or an undefined
  // tensor stands for "no tensor". Throws c10::Error if `name` is not declared
  // as stashable.
  void stash(const std::string& name, std::optional<at::Tensor> tensor);

  // Returns the tensor that was stashed under `name`, or nullopt if "no tensor"
  // was stashed, and forgets it. Throws c10::Error if `name` is not declared as
  // poppable, or if nothing was stashed.
  std::optional<at::Tensor> pop(const std::string& name);

 private:
  SkipKey key_of(const std::string& name) const;

  Names names_;
  std::map<std::string, Namespace> namespaces_;
};

}  // namespace gpipe

namespace gpipe::internal {

// ---- The storage for skip tensors between stash() and pop(): one tracker per
// cell in a pipeline, one per thread outside of a pipeline.

// A store of skip tensors by key.
class SkipTracker {
 public:
  virtual ~SkipTracker() = default;

  // Stores `tensor` under `key`. A tensor that is there already is replaced.
  virtual void save(const SkipKey& key, std::optional<at::Tensor> tensor) = 0;

  // Returns the tensor under `key` and forgets it. Throws c10::Error if nothing
  // was saved.
  virtual std::optional<at::Tensor> load(const SkipKey& key) = 0;

 protected:
  [[noreturn]] static void throw_not_stashed(const SkipKey& key);
};

// A tracker that keeps the tensors in a map.
class MapSkipTracker : public SkipTracker {
 public:
  void save(const SkipKey& key, std::optional<at::Tensor> tensor) override;
  std::optional<at::Tensor> load(const SkipKey& key) override;

 private:
  std::map<SkipKey, std::optional<at::Tensor>> tensors_;
};

// Returns the tracker of this thread: that of the innermost UseSkipTracker, or
// else the thread's own tracker, which serves a plain Sequential.
SkipTracker& current_skip_tracker();

// Makes `tracker` the current tracker of this thread while in scope.
class UseSkipTracker {
 public:
  explicit UseSkipTracker(SkipTracker& tracker);
  ~UseSkipTracker();
  UseSkipTracker(const UseSkipTracker&) = delete;
  UseSkipTracker& operator=(const UseSkipTracker&) = delete;

 private:
  SkipTracker* previous_;
};

// ---- A base class that marks pipelines among modules: they place their own
// parameters and move skip tensors between their own layers.

// A base class beside torch::nn::Module for modules that keep control of their
// devices. Other code must not move their parameters. The skip tensors of their
// layers stay inside the module and are not visible to an outer model.
class KeepsDevices {
 protected:
  KeepsDevices() = default;
  virtual ~KeepsDevices() = default;
};

}  // namespace gpipe::internal

namespace gpipe {

// ---- Checks that the stashes and pops of a model match.

namespace internal {
// Returns the skip tensors that the layers of `module` declare, one entry per
// layer, in order. Modules inside a layer count as part of the layer. Modules
// inside a nested pipeline (see KeepsDevices) are left out.
std::vector<internal::LayerSkips> declared_skips(
    const torch::nn::Sequential& module);
}  // namespace internal

// Throws c10::TypeError if stashes and pops of `module` do not match. The text
// has one line per mismatch: a name that is stashed or popped twice in a
// namespace, popped before it is stashed, never popped, or stashed and popped
// by the same layer.
void verify_skippables(torch::nn::Sequential module);

namespace internal {
// Does the same for `layers` whose skip tensors are known, in model order.
void verify_skips(const std::vector<internal::LayerSkips>& layers);
}  // namespace internal

}  // namespace gpipe
