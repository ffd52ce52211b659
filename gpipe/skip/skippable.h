// The base class of layers that stash or pop skip tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/skip/namespace.h"

namespace gpipe {

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
