// Layers, losses, a language model and cuts of models for tests.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/skip.h"
#include "gpipe/weighted_loss.h"

namespace gpipe::testing {

// A layer that calls a function.
template <typename Output, typename Input>
struct FunctionLayer : torch::nn::Module {
  using Function = std::function<Output(Input)>;
  explicit FunctionLayer(Function function) : function(std::move(function)) {}
  Output forward(Input input) { return function(std::move(input)); }
  Function function;
};

// Returns a layer: layer(f) for tensors, layer<Output, Input>(f) for other
// values.
template <typename Output = torch::Tensor, typename Input = torch::Tensor,
          typename Function>
torch::nn::AnyModule layer(Function function) {
  return torch::nn::AnyModule(
      std::make_shared<FunctionLayer<Output, Input>>(std::move(function)));
}

// The function of on_backward(), and the Function that keeps it.
using BackwardFunction = std::function<torch::Tensor(torch::Tensor grad)>;
struct OnBackward : torch::autograd::Function<OnBackward> {
  struct Holder : torch::CustomClassHolder {
    explicit Holder(BackwardFunction function)
        : function(std::move(function)) {}
    BackwardFunction function;
  };
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& x,
                               BackwardFunction function) {
    context->saved_data["function"] = c10::IValue::make_capsule(
        c10::make_intrusive<Holder>(std::move(function)));
    return x * 1;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list grads) {
    const auto holder = context->saved_data["function"].toCapsule();
    return {static_cast<Holder&>(*holder).function(grads[0]), torch::Tensor()};
  }
};

// Returns x * 1, whose backward passes on what `function` returns for the
// gradient.
inline torch::Tensor on_backward(const torch::Tensor& x,
                                 BackwardFunction function) {
  return OnBackward::apply(x, std::move(function));
}

// Returns a layer that returns its input. Its backward runs a backward of its
// own, as a checkpoint written by hand does: each micro-batch adds 1 to each
// element of the gradients of linear->weight and linear->bias.
inline torch::nn::AnyModule adds_to_grad(torch::nn::Linear linear) {
  return layer([linear](torch::Tensor x) {
    return on_backward(x, [linear](torch::Tensor grad) {
      const torch::AutoGradMode with_graph(true);
      (linear->weight.sum() + linear->bias.sum()).backward();
      return grad;
    });
  });
}

// Returns a Linear from 3 to 3 in float64.
inline torch::nn::Linear double_linear() {
  torch::nn::Linear module(3, 3);
  module->to(torch::kDouble);
  return module;
}

// Stashes its input as "kept" and returns it.
struct KeepImpl : torch::nn::Module, Skippable {
  KeepImpl() : Skippable({/*stash=*/{"kept"}, /*pop=*/{}}) {}
  torch::Tensor forward(torch::Tensor x) {
    stash("kept", x);
    return x;
  }
};
TORCH_MODULE(Keep);

// Adds what Keep has stashed to its input.
struct AddImpl : torch::nn::Module, Skippable {
  AddImpl() : Skippable({/*stash=*/{}, /*pop=*/{"kept"}}) {}
  torch::Tensor forward(const torch::Tensor& x) { return x + *pop("kept"); }
};
TORCH_MODULE(Add);

// ---- Layers that pass on a mask or a weight, for tests of tensors that all
// micro-batches share.

// Returns 2 x + mask, and the mask as it came.
struct AddMaskImpl : torch::nn::Module {
  std::tuple<torch::Tensor, torch::Tensor> forward(
      std::tuple<torch::Tensor, torch::Tensor> value) {
    auto& [x, mask] = value;
    return {x * 2 + mask, mask};
  }
};
TORCH_MODULE(AddMask);

// Returns x + mask.
struct EndMaskImpl : torch::nn::Module {
  torch::Tensor forward(std::tuple<torch::Tensor, torch::Tensor> value) {
    return std::get<0>(value) + std::get<1>(value);
  }
};
TORCH_MODULE(EndMask);

// Multiplies by its weight of ones, and stashes it.
struct GiveWeightImpl : torch::nn::Module, Skippable {
  GiveWeightImpl() : Skippable({/*stash=*/{"weight"}, /*pop=*/{}}) {
    weight = register_parameter("weight", torch::ones({3, 3}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    stash("weight", weight);
    return x.matmul(weight);
  }
  torch::Tensor weight;
};
TORCH_MODULE(GiveWeight);

// Multiplies by the weight of GiveWeight.
struct TakeWeightImpl : torch::nn::Module, Skippable {
  TakeWeightImpl() : Skippable({/*stash=*/{}, /*pop=*/{"weight"}}) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return x.matmul(pop("weight").value());
  }
};
TORCH_MODULE(TakeWeight);

// The loss of most tests of training steps: returns the mean over all elements,
// and so over rows.
inline at::Tensor mean_square(const at::Tensor& output,
                              const at::Tensor& target) {
  return output.sub(target).pow(2).mean();
}

// ---- A language model of unequal sequences, for tests of weighted losses.

constexpr int64_t kVocabulary = 11;
constexpr int64_t kIgnored = -100;  // the target of tokens that do not count

// Returns eight layers in double precision, from tokens [1, n] to logits
// [1, n, kVocabulary].
inline torch::nn::Sequential token_model() {
  namespace nn = torch::nn;
  torch::manual_seed(5);
  // In braces, so that each compiler makes them in this order.
  nn::Sequential model{nn::Embedding(kVocabulary, 6),
                       nn::Linear(6, 7),
                       nn::Tanh(),
                       nn::Linear(7, 6),
                       nn::Tanh(),
                       nn::Linear(6, 7),
                       nn::Tanh(),
                       nn::Linear(7, kVocabulary)};
  model->to(torch::kDouble);
  return model;
}

// Sequences [1, n], and their targets [1, n].
struct Sequences {
  std::vector<torch::Tensor> tokens, targets;
};

// Returns sequences of the given lengths. About half of the tokens count, but
// none of sequence 2.
inline Sequences sequences(const std::vector<int64_t>& lengths, int64_t seed) {
  torch::manual_seed(seed);
  Sequences result;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const auto random = [&] {
      return torch::randint(kVocabulary, {1, lengths[i]}, torch::kLong);
    };
    result.tokens.push_back(random());
    torch::Tensor target = random();
    target.masked_fill_(i == 2 ? target >= 0 : random() % 2 == 0, kIgnored);
    result.targets.push_back(target);
  }
  return result;
}

// The lengths of eight micro-batches.
inline std::vector<int64_t> token_lengths() {
  return {16, 512, 48, 256, 17, 128, 96, 333};
}

// Returns the sum of the cross-entropies of the tokens that count.
inline torch::Tensor token_loss_sum(const torch::Tensor& logits,
                                    const torch::Tensor& target) {
  namespace F = torch::nn::functional;
  return F::cross_entropy(
      logits.flatten(0, 1), target.flatten(),
      F::CrossEntropyFuncOptions().ignore_index(kIgnored).reduction(
          torch::kSum));
}

// The loss of the tokens that count, with their number as its weight and the
// metric "correct".
inline WeightedLoss token_loss(const torch::Tensor& logits,
                               const torch::Tensor& target) {
  return {token_loss_sum(logits, target),
          (target != kIgnored).sum(),
          {{"correct", (logits.argmax(-1) == target).sum()}}};
}

// Returns the gradients of one plain forward and backward of sum / count, where
// both are over all tokens that count, by name.
inline std::vector<std::pair<std::string, torch::Tensor>> plain_token_grads(
    torch::nn::Sequential model, const std::vector<Sequences>& replicas) {
  torch::Tensor sum;
  int64_t count = 0;
  for (const Sequences& each : replicas) {
    for (std::size_t i = 0; i < each.tokens.size(); ++i) {
      const torch::Tensor part =
          token_loss_sum(model->forward(each.tokens[i]), each.targets[i]);
      sum = sum.defined() ? sum + part : part;
      count += (each.targets[i] != kIgnored).sum().item<int64_t>();
    }
  }
  (sum / static_cast<double>(count)).backward();
  std::vector<std::pair<std::string, torch::Tensor>> grads;
  for (const auto& each : model->named_parameters()) {
    grads.emplace_back(each.key(), each.value().grad());
  }
  return grads;
}

// The same for a model in half precision: the loss is computed in float32.
inline WeightedLoss token_loss_in_float(const torch::Tensor& logits,
                                        const torch::Tensor& target) {
  return token_loss(logits.to(torch::kFloat), target);
}

// Returns, by name and on the CPU, the gradients of token_loss_in_float().
// LibTorch computes them on the device of `model`, adds up those of one
// sequence after the other in the dtype of the parameters, and then divides by
// the number of tokens that count.
inline std::vector<std::pair<std::string, torch::Tensor>> added_token_grads(
    torch::nn::Sequential model, const Sequences& batch) {
  const torch::Device device = model->parameters().front().device();
  int64_t count = 0;
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    token_loss_in_float(model->forward(batch.tokens[i].to(device)),
                        batch.targets[i].to(device))
        .sum.backward();
    count += (batch.targets[i] != kIgnored).sum().item<int64_t>();
  }
  std::vector<std::pair<std::string, torch::Tensor>> grads;
  for (const auto& each : model->named_parameters()) {
    const torch::Tensor grad = each.value().grad();
    grads.emplace_back(each.key(), (grad / static_cast<double>(count)).cpu());
  }
  return grads;
}

// Returns the number of layers per stage, as even as possible.
inline std::vector<int64_t> cut(int64_t layers, int64_t stages) {
  std::vector<int64_t> balance;
  for (int64_t s = 0; s < stages; ++s) {
    balance.push_back((s + 1) * layers / stages - s * layers / stages);
  }
  return balance;
}

// Returns kV if the last stage of `schedule` is on the first rank, else kLoop.
inline Placement placement_of(const Schedule& schedule) {
  const std::vector<int> placed = rank_of_stage(schedule);
  const bool back = placed.size() > schedule.ranks.size() &&
                    schedule.ranks.size() > 1 && placed.back() == 0;
  return back ? Placement::kV : Placement::kLoop;
}

}  // namespace gpipe::testing
