// Builds flat Sequentials from parts, for authors of models.
#pragma once

#include <c10/util/Exception.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <typeindex>
#include <typeinfo>
#include <utility>
#include <vector>

namespace gpipe {

// A pipeline is cut between the layers of a Sequential, and a layer that
// contains others cannot be cut. The functions below make flat Sequentials.
// They use the given layers in order and without copies.

// One or several layers and the prefix of their names.
class Part {
 public:
  // `name`: the name of the layer, or the prefix of several layers.
  // `layers`: one layer, which is called `name`, or a torch::nn::Sequential,
  // whose layers are called `name` + "_" + their own name. Throws c10::Error if
  // a layer is null. Thread-safe.
  template <typename Layers>
  Part(std::string name, Layers layers) : name_(std::move(name)) {
    if constexpr (std::is_same_v<Layers, torch::nn::Sequential>) {
      layers_ = std::move(layers);
    } else {
      layer_ = torch::nn::AnyModule(std::move(layers));
      TORCH_CHECK(layer_.ptr(), "the part '", name_, "' is null");
    }
  }

 private:
  friend torch::nn::Sequential stack(const std::vector<Part>& parts);

  std::string name_;
  torch::nn::AnyModule layer_;
  torch::nn::Sequential layers_{nullptr};
};

// Returns the layers of all parts, one after the other.
//
//   Sequential model = gpipe::stack({
//       {"stem", torch::nn::Linear(8, 16)},
//       {"block", gpipe::repeat(3, [](int64_t) {
//          return gpipe::stack({{"linear", torch::nn::Linear(16, 16)},
//                               {"relu", torch::nn::ReLU()}});
//        })},
//       {"head", torch::nn::Linear(16, 1)},
//   });  // stem, block_0_linear, block_0_relu, block_1_linear, ..., head
//
// Throws c10::ValueError if two layers get the same name, or if a part is a
// null Sequential. Throws c10::Error if the name of a layer in the result is
// empty or contains a dot.
// Threads: any thread, as long as no other thread changes the parts.
torch::nn::Sequential stack(const std::vector<Part>& parts);

// Returns the layers of make(0), ..., make(count - 1), which may be layers or
// Sequentials. The numbers are the names of the parts. The calls run in order
// on the calling thread. Each call must make new layers, so no parameter is
// shared.
//
// Throws c10::ValueError if `count` is negative, and the errors of stack() and
// `make`. Thread-safe.
template <typename Make>
torch::nn::Sequential repeat(int64_t count, Make make);

// A Sequential that can be a layer of another Sequential, for models that are
// nested anyway; LibTorch's own cannot be a layer. It takes and returns one
// tensor.
//
// forward() throws what a layer throws. clone() throws c10::Error if a layer
// has no clone() of its own (torch/nn/cloneable.h). Threads: as the layers
// allow, as long as no other thread changes the module.
class NestedImpl : public torch::nn::SequentialImpl {
 public:
  using SequentialImpl::SequentialImpl;

  torch::Tensor forward(torch::Tensor input) {
    return SequentialImpl::forward(std::move(input));
  }

  std::shared_ptr<Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;
};
TORCH_MODULE(Nested);

namespace detail {
torch::nn::Sequential flatten(const torch::nn::Sequential& model,
                              const std::vector<std::type_index>& nested);
void check_count(int64_t count);
}  // namespace detail

// Returns `model` without nesting: each layer of type Nested is replaced by its
// own layers, named "outer_inner", at any depth. Parameters, buffers and
// results are the same.
//
// `SequentialImpls`: further types to flatten, as in
// flatten<MyStackImpl>(model). They must derive from torch::nn::SequentialImpl,
// and their forward() may do no more than SequentialImpl's. Other types remain
// one layer, since their forward() may do anything (for example add a skip
// connection).
//
// Throws c10::ValueError if `model` is null, or if two layers get the same
// name. Threads: any thread, as long as no other thread changes the model.
template <typename... SequentialImpls>
torch::nn::Sequential flatten(const torch::nn::Sequential& model) {
  static_assert(
      (std::is_base_of_v<torch::nn::SequentialImpl, SequentialImpls> && ...),
      "flatten() is for types that derive from torch::nn::SequentialImpl");
  return detail::flatten(model,
                         {typeid(NestedImpl), typeid(SequentialImpls)...});
}

template <typename Make>
torch::nn::Sequential repeat(int64_t count, Make make) {
  detail::check_count(count);
  std::vector<Part> parts;
  for (int64_t k = 0; k < count; ++k) {
    parts.emplace_back(std::to_string(k), make(k));
  }
  return stack(parts);
}

}  // namespace gpipe
