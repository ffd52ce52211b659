// The mixin of layers that stash or pop skip tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/skip/namespace.h"

namespace gpipe {

// Lets a layer hand a tensor to a later layer without passing it through
// those between. In a pipeline the tensor goes straight from the stashing to
// the popping partition, and so does its gradient on the way back.
//
//   struct StashImpl : torch::nn::Module, gpipe::Skippable {
//     StashImpl() : Skippable({/*stash=*/{"1to3"}, /*pop=*/{}}) {}
//     torch::Tensor forward(torch::Tensor x) { stash("1to3", x); return x; }
//   };
//
// Every forward must stash and pop exactly what is declared. A layer works in
// a plain torch::nn::Sequential too, on any thread; there each thread keeps
// its own tensors between the stash and the pop.
//
// Shapes: any, also integer tensors; in a pipeline a stashed tensor belongs to
// one micro-batch. Threads: a layer is called by one thread at a time.
// The idea is torchgpipe's @skippable (arXiv 2004.09910, section 3.3).
class Skippable {
 public:
  virtual ~Skippable() = default;

  // Moves all declared names, or those in `only`, into `ns`: layers of the
  // same type then do not meet each other's tensors. c10::Error if `only`
  // holds a name that was not declared.
  void isolate(const Namespace& ns);
  void isolate(const Namespace& ns, const std::vector<std::string>& only);

  // The declared names with their namespaces, in the order declared.
  std::vector<SkipKey> stashable() const;
  std::vector<SkipKey> poppable() const;

 protected:
  // What a layer declares; see the constructor.
  struct Names {
    std::vector<std::string> stash, pop;
  };
  // Every forward must stash and pop these, each once.
  explicit Skippable(Names names);

  // Hands over `tensor`, or "none". c10::Error if `name` is not declared.
  void stash(const std::string& name, std::optional<at::Tensor> tensor);

  // What was stashed under `name`. c10::Error if `name` is not declared, or
  // nothing was stashed.
  std::optional<at::Tensor> pop(const std::string& name);

 private:
  SkipKey key_of(const std::string& name) const;

  Names names_;
  std::map<std::string, Namespace> namespaces_;
};

}  // namespace gpipe
