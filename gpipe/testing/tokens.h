// A language model of unequal sequences, for tests of weighted losses.
#pragma once

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/runtime/cell/value.h"

namespace gpipe::testing {

constexpr int64_t kVocabulary = 11;
constexpr int64_t kIgnored = -100;  // the target of tokens that do not count

// Returns eight layers in double precision, from tokens [1, n] to logits
// [1, n, kVocabulary].
inline torch::nn::Sequential token_model() {
  namespace nn = torch::nn;
  torch::manual_seed(5);
  nn::Sequential model(nn::Embedding(kVocabulary, 6), nn::Linear(6, 7),
                       nn::Tanh(), nn::Linear(7, 6), nn::Tanh(),
                       nn::Linear(6, 7), nn::Tanh(),
                       nn::Linear(7, kVocabulary));
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

}  // namespace gpipe::testing
