#include "models/zoo/transformer_layers.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>
#include <torch/nn/init.h>

#include <cmath>
#include <string>
#include <vector>

namespace gpipe::models {
namespace {

using torch::Tensor;
using torch::nn::LayerNorm;
using torch::nn::Linear;

constexpr char kWeight[] = "weight";

LayerNorm norm_of(const TransformerSizes& sizes) {
  return LayerNorm(torch::nn::LayerNormOptions({sizes.width}));
}

Tensor dropped(const Tensor& x, double probability, bool training) {
  return probability > 0 ? at::dropout(x, probability, training) : x;
}

// `change`: a function that computes what is added to x.
template <typename Change>
Tensor add(const Tensor& x, const ResidualOptions& options, LayerNorm& norm,
           bool training, Change change) {
  const auto changed = [&](const Tensor& y) {
    return dropped(change(y), options.dropout, training);
  };
  if (options.norm == NormPlace::kPre) return x + changed(norm(x));
  return norm(x + changed(x));
}

// Returns [sequence, width]: sine and cosine in turns, with falling frequency
// (arXiv 1706.03762, section 3.5).
Tensor sinusoids(const TransformerSizes& sizes) {
  const Tensor place = at::arange(sizes.sequence, at::kDouble);
  const Tensor frequency =
      at::exp(at::arange(0, sizes.width, 2, at::kDouble) *
              (-std::log(10000.0) / static_cast<double>(sizes.width)));
  const Tensor angle = at::outer(place, frequency);
  return at::stack({angle.sin(), angle.cos()}, /*dim=*/-1)
      .flatten(/*start_dim=*/1)
      .to(c10::typeMetaToScalarType(c10::get_default_dtype()));
}

const char* text_of(NormPlace norm) {
  return norm == NormPlace::kPre ? "pre" : "post";
}

}  // namespace

// ---- TokenEmbedding

TokenEmbeddingImpl::TokenEmbeddingImpl(const TransformerSizes& sizes,
                                       Positions positions, double dropout,
                                       std::optional<Namespace> tied)
    : Skippable({tied ? std::vector<std::string>{kWeight}
                      : std::vector<std::string>{},
                 {}}),
      sizes_(sizes),
      positions_kind_(positions),
      dropout_(dropout),
      tied_(tied.has_value()) {
  if (tied) isolate(*tied);
  TokenEmbeddingImpl::reset();
}

void TokenEmbeddingImpl::reset() {
  weight_ =
      register_parameter(kWeight, at::empty({sizes_.vocabulary, sizes_.width}));
  torch::nn::init::normal_(weight_, 0,
                           1 / std::sqrt(static_cast<double>(sizes_.width)));
  switch (positions_kind_) {
    case Positions::kSinusoidal:
      positions_ = register_buffer("positions", sinusoids(sizes_));
      break;
    case Positions::kLearned:
      positions_ = register_parameter(
          "positions", at::empty({sizes_.sequence, sizes_.width}));
      torch::nn::init::normal_(positions_, 0, 0.02);
      break;
    case Positions::kNone:
      break;
  }
}

void TokenEmbeddingImpl::check(const Tensor& tokens) const {
  TORCH_CHECK_VALUE(tokens.dim() == 2 && (tokens.scalar_type() == at::kLong ||
                                          tokens.scalar_type() == at::kInt),
                    "transformer: the input must be tokens of shape [batch, "
                    "length] and dtype "
                    "int64 or int32, but its shape is ",
                    tokens.sizes(), " and its dtype ", tokens.dtype());
  TORCH_CHECK_VALUE(
      tokens.size(1) >= 1 && tokens.size(1) <= sizes_.sequence,
      "transformer: the input's length must be 1 to ", sizes_.sequence,
      " (TransformerOptions::sequence), but its shape is ", tokens.sizes());
  // On an accelerator, reading the values would block until they are computed.
  if (!tokens.is_cpu() || tokens.numel() == 0) return;
  const auto [least, most] = tokens.aminmax();
  const auto low = least.item<int64_t>(), high = most.item<int64_t>();
  TORCH_CHECK_VALUE(low >= 0 && high < sizes_.vocabulary,
                    "transformer: tokens must be 0 to ", sizes_.vocabulary - 1,
                    " (TransformerOptions::vocabulary - 1), but they are ", low,
                    " to ", high);
}

Tensor TokenEmbeddingImpl::forward(const Tensor& tokens) {
  check(tokens);
  if (tied_) stash(kWeight, weight_);
  Tensor x = at::embedding(weight_, tokens) *
             std::sqrt(static_cast<double>(sizes_.width));
  if (positions_.defined()) {
    x = x + positions_.slice(/*dim=*/0, 0, tokens.size(1));
  }
  return dropped(x, dropout_, is_training());
}

void TokenEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "gpipe::models::TokenEmbedding(" << sizes_.vocabulary << ", "
         << sizes_.width << ", sequence=" << sizes_.sequence
         << (tied_ ? ", tied" : "") << ")";
}

// ---- SelfAttention

SelfAttentionImpl::SelfAttentionImpl(const TransformerSizes& sizes,
                                     const ResidualOptions& residual,
                                     double attention_dropout)
    : sizes_(sizes),
      residual_(residual),
      attention_dropout_(attention_dropout) {
  SelfAttentionImpl::reset();
}

void SelfAttentionImpl::reset() {
  const int64_t width = sizes_.width;
  in_proj_weight_ =
      register_parameter("in_proj_weight", at::empty({3 * width, width}));
  in_proj_bias_ = register_parameter("in_proj_bias", at::zeros({3 * width}));
  out_proj_ = register_module("out_proj", Linear(width, width));
  torch::nn::init::xavier_uniform_(in_proj_weight_);
  torch::nn::init::zeros_(out_proj_->bias);
  norm_ = register_module("norm", norm_of(sizes_));
}

Tensor SelfAttentionImpl::attend(const Tensor& x) {
  const int64_t batch = x.size(0), length = x.size(1);
  const int64_t head_width = sizes_.width / sizes_.heads;
  // 3 x [batch, heads, length, head_width]
  const auto parts = at::linear(x, in_proj_weight_, in_proj_bias_)
                         .view({batch, length, 3, sizes_.heads, head_width})
                         .permute({2, 0, 3, 1, 4})
                         .unbind(0);
  const Tensor heads = at::scaled_dot_product_attention(
      parts[0], parts[1], parts[2], /*attn_mask=*/{},
      is_training() ? attention_dropout_ : 0.0, /*is_causal=*/true);
  return out_proj_(
      heads.transpose(1, 2).reshape({batch, length, sizes_.width}));
}

Tensor SelfAttentionImpl::forward(const Tensor& x) {
  return add(x, residual_, norm_, is_training(),
             [&](const Tensor& y) { return attend(y); });
}

void SelfAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "gpipe::models::SelfAttention(" << sizes_.width
         << ", heads=" << sizes_.heads << ", norm=" << text_of(residual_.norm)
         << ")";
}

// ---- FeedForward

FeedForwardImpl::FeedForwardImpl(const TransformerSizes& sizes,
                                 const ResidualOptions& residual,
                                 Activation activation)
    : sizes_(sizes), residual_(residual), activation_(activation) {
  FeedForwardImpl::reset();
}

void FeedForwardImpl::reset() {
  linear1_ =
      register_module("linear1", Linear(sizes_.width, sizes_.feed_forward));
  linear2_ =
      register_module("linear2", Linear(sizes_.feed_forward, sizes_.width));
  norm_ = register_module("norm", norm_of(sizes_));
}

Tensor FeedForwardImpl::forward(const Tensor& x) {
  return add(x, residual_, norm_, is_training(), [&](const Tensor& y) {
    Tensor inner = linear1_(y);
    inner =
        activation_ == Activation::kRelu ? at::relu(inner) : at::gelu(inner);
    return linear2_(dropped(inner, residual_.dropout, is_training()));
  });
}

void FeedForwardImpl::pretty_print(std::ostream& stream) const {
  stream << "gpipe::models::FeedForward(" << sizes_.width << ", "
         << sizes_.feed_forward << ", norm=" << text_of(residual_.norm) << ")";
}

// ---- TiedOutput

TiedOutputImpl::TiedOutputImpl(int64_t vocabulary, const Namespace& tied)
    : Skippable({{}, {kWeight}}), vocabulary_(vocabulary) {
  isolate(tied);
  TiedOutputImpl::reset();
}

void TiedOutputImpl::reset() {
  bias_ = register_parameter("bias", at::zeros({vocabulary_}));
}

Tensor TiedOutputImpl::forward(const Tensor& x) {
  return at::linear(x, *pop(kWeight), bias_);
}

void TiedOutputImpl::pretty_print(std::ostream& stream) const {
  stream << "gpipe::models::TiedOutput(" << vocabulary_ << ")";
}

}  // namespace gpipe::models
