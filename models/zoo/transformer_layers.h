// The layers of a Transformer, after Vaswani et al. (arXiv 1706.03762).
// Comments below name the sections of that paper.
//
// forward() throws c10::Error if the input has another width. Options are not
// checked here, but in transformer.h.
// Threads: any thread may construct a layer, which draws weights from
// LibTorch's default generator. Several threads may run forward() at once,
// since it does not change the layer.
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

// Position of LayerNorm: kPost is that of the paper, kPre that of Xiong et al.
// (arXiv 2002.04745).
enum class NormPlace { kPre, kPost };
enum class Positions { kSinusoidal, kLearned, kNone };
enum class Activation { kRelu, kGelu };

// The options of a Transformer that its layers need; see transformer.h.
struct TransformerSizes {
  int64_t width, feed_forward, heads, vocabulary, sequence;
};

// The options of the residual sums around attention and feed-forward.
struct ResidualOptions {
  NormPlace norm;
  double dropout;
};

// Maps tokens [batch, length] to [batch, length, width]: rows of "weight" times
// sqrt(width), plus the positions (3.4, 3.5). With a namespace `tied`, also
// stashes the weight in it as "weight", for a TiedOutput.
//
// forward() throws c10::ValueError if the input is not tokens, if there are too
// many, or, on a CPU, if one is out of range.
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
  torch::Tensor weight_, positions_;  // the second one is undefined for kNone
};
TORCH_MODULE(TokenEmbedding);

// Adds to x the result of causal self-attention with several heads (3.2). Maps
// [batch, length, width] to the same shape.
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

// Adds to x the result of two layers on each token by itself (3.3). Maps
// [batch, length, width] to the same shape.
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

// A Linear with its own bias and the weight that a TokenEmbedding has stashed
// as "weight" in `tied` (3.4; Press and Wolf, arXiv 1608.05859).
//
// forward() throws c10::Error if nothing was stashed.
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
