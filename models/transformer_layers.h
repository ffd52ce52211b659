// The layers of a Transformer.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <ostream>

#include "gpipe/skip.h"

namespace gpipe::models {

enum class NormPlace { kPre, kPost };
enum class Positions { kSinusoidal, kLearned, kNone };
enum class Activation { kRelu, kGelu };

// The options of a Transformer that its layers need; see transformer.h.
struct TransformerSizes {
  int64_t width, feed_forward, heads, vocabulary, sequence;
};

// What is put around attention and feed-forward.
struct ResidualOptions {
  NormPlace norm;
  double dropout;
};

// Tokens [batch, length] to [batch, length, width]: rows of "weight" times
// sqrt(width), plus the positions. Given a namespace, stashes the weight as
// "weight" in it for a TiedOutput.
class TokenEmbeddingImpl : public torch::nn::Cloneable<TokenEmbeddingImpl>,
                           public Skippable {
 public:
  TokenEmbeddingImpl(const TransformerSizes& sizes, Positions positions,
                     double dropout, std::optional<Namespace> tied);

  torch::Tensor forward(const torch::Tensor& tokens);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

 private:
  void check(const torch::Tensor& tokens) const;

  TransformerSizes sizes_;
  Positions positions_kind_;
  double dropout_;
  bool tied_;
  torch::Tensor weight_, positions_;  // the second one undefined for kNone
};
TORCH_MODULE(TokenEmbedding);

// x plus what several heads of causal self-attention make of it:
// [batch, length, width] to the same.
class SelfAttentionImpl : public torch::nn::Cloneable<SelfAttentionImpl> {
 public:
  SelfAttentionImpl(const TransformerSizes& sizes,
                    const ResidualOptions& residual, double attention_dropout);

  torch::Tensor forward(const torch::Tensor& x);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

 private:
  torch::Tensor attend(const torch::Tensor& x);

  TransformerSizes sizes_;
  ResidualOptions residual_;
  double attention_dropout_;
  torch::Tensor in_proj_weight_, in_proj_bias_;
  torch::nn::Linear out_proj_{nullptr};
  torch::nn::LayerNorm norm_{nullptr};
};
TORCH_MODULE(SelfAttention);

// x plus what two layers make of each token by itself: [batch, length, width]
// to the same.
class FeedForwardImpl : public torch::nn::Cloneable<FeedForwardImpl> {
 public:
  FeedForwardImpl(const TransformerSizes& sizes,
                  const ResidualOptions& residual, Activation activation);

  torch::Tensor forward(const torch::Tensor& x);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

 private:
  TransformerSizes sizes_;
  ResidualOptions residual_;
  Activation activation_;
  torch::nn::Linear linear1_{nullptr}, linear2_{nullptr};
  torch::nn::LayerNorm norm_{nullptr};
};
TORCH_MODULE(FeedForward);

// A Linear with a bias of its own and the weight that a TokenEmbedding has
// stashed as "weight" in `tied`.
class TiedOutputImpl : public torch::nn::Cloneable<TiedOutputImpl>,
                       public Skippable {
 public:
  TiedOutputImpl(int64_t vocabulary, const Namespace& tied);

  torch::Tensor forward(const torch::Tensor& x);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

 private:
  int64_t vocabulary_;
  torch::Tensor bias_;
};
TORCH_MODULE(TiedOutput);

}  // namespace gpipe::models
