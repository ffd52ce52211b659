// Public: for authors of models, flat Sequentials from parts.
#pragma once

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

// A pipeline is cut between the layers of a Sequential, so what is nested in it
// cannot be cut. The functions below make flat ones; each takes the layers over
// as they are, without copies, in order.

// One or several layers, and a name to go before theirs.
class Part {
 public:
  // `layers`: a layer, which is called `name`; or a torch::nn::Sequential of
  // layers, which are called "name_" and what they are called in it. c10::Error
  // for a layer that is null. Threads: any.
  template <typename Layers>
  Part(std::string name, Layers layers) : name_(std::move(name)) {
    if constexpr (std::is_same_v<Layers, torch::nn::Sequential>) {
      layers_ = std::move(layers);
    } else {
      layer_ = torch::nn::AnyModule(std::move(layers));
    }
  }

 private:
  friend torch::nn::Sequential stack(const std::vector<Part>& parts);

  std::string name_;
  torch::nn::AnyModule layer_;
  torch::nn::Sequential layers_{nullptr};
};

// The layers of all parts, one after the other.
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
// Errors: c10::ValueError if two layers come to the same name, or a part is a
// null Sequential; c10::Error for a name that is empty or has a dot in it.
// Threads: any, while no other one changes the parts.
torch::nn::Sequential stack(const std::vector<Part>& parts);

// What make(0), ..., make(count - 1) return, layers or Sequentials, with their
// numbers as names of the parts. Each call makes its own, so that no parameter
// is shared; they come in order, on the calling thread.
//
// Errors: c10::ValueError for a negative count; those of stack(), and of
// make(). Threads: any.
template <typename Make>
torch::nn::Sequential repeat(int64_t count, Make make);

// A Sequential that can be a layer of another one, which LibTorch's own cannot.
// For models that are nested anyway; takes and returns a tensor.
//
// Errors: forward() throws what a layer throws; clone() c10::Error if a layer
// has no clone() of its own (torch/nn/cloneable.h).
// Threads: those that its layers allow; none while another one changes it.
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

// `model` without nesting: in the place of each layer that is a Nested are the
// layers of it, "outer_inner", at any depth. Parameters, buffers and results
// are the same. Types of your own that derive from torch::nn::SequentialImpl
// are named, flatten<MyStackImpl, ...>(model), if their forward() does no more
// than SequentialImpl's; others stay the one layer that they are, since nobody
// can tell from outside what their forward() does (add a skip connection, say).
//
// Errors: c10::ValueError if `model` is null, or two layers come to the same
// name. Threads: any, while no other one changes the model.
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
