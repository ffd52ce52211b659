#include "models/transformer.h"

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
#include <torch/nn/cloneable.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cmath>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "gpipe/sequential.h"
#include "gpipe/skip.h"

namespace gpipe::models {

// ---- The layers, after Vaswani et al. (arXiv 1706.03762)
//
// Comments name the sections of that paper. forward() throws c10::Error if the
// input has another width. Several threads may run forward() at once, since it
// does not change the layer.

// The options of a Transformer that its layers need; see transformer.h.
struct TransformerSizes {
  int64_t width, feed_forward, heads, vocabulary, sequence;
};

// The options of the residual sums around attention and feed-forward.
struct ResidualOptions {
  NormPlace norm;
  double dropout;
};

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
                     double dropout, std::optional<Namespace> tied)
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

  Tensor forward(const Tensor& tokens) {
    check(tokens);
    if (tied_) stash(kWeight, weight_);
    Tensor x = at::embedding(weight_, tokens) *
               std::sqrt(static_cast<double>(sizes_.width));
    if (positions_.defined()) {
      x = x + positions_.slice(/*dim=*/0, 0, tokens.size(1));
    }
    return dropped(x, dropout_, is_training());
  }

  void reset() override {
    weight_ = register_parameter(kWeight,
                                 at::empty({sizes_.vocabulary, sizes_.width}));
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

  void pretty_print(std::ostream& stream) const override {
    stream << "gpipe::models::TokenEmbedding(" << sizes_.vocabulary << ", "
           << sizes_.width << ", sequence=" << sizes_.sequence
           << (tied_ ? ", tied" : "") << ")";
  }

 private:
  void check(const Tensor& tokens) const {
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
    // On an accelerator, reading the values would block until they are
    // computed.
    if (!tokens.is_cpu() || tokens.numel() == 0) return;
    const auto [least, most] = tokens.aminmax();
    const auto low = least.item<int64_t>(), high = most.item<int64_t>();
    TORCH_CHECK_VALUE(low >= 0 && high < sizes_.vocabulary,
                      "transformer: tokens must be 0 to ",
                      sizes_.vocabulary - 1,
                      " (TransformerOptions::vocabulary - 1), but they are ",
                      low, " to ", high);
  }

  TransformerSizes sizes_;
  Positions positions_kind_;
  double dropout_;
  bool tied_;
  Tensor weight_, positions_;  // the second one is undefined for kNone
};
TORCH_MODULE(TokenEmbedding);

// Adds to x the result of causal self-attention with several heads (3.2). Maps
// [batch, length, width] to the same shape.
class SelfAttentionImpl : public torch::nn::Cloneable<SelfAttentionImpl> {
 public:
  SelfAttentionImpl(const TransformerSizes& sizes,
                    const ResidualOptions& residual, double attention_dropout)
      : sizes_(sizes),
        residual_(residual),
        attention_dropout_(attention_dropout) {
    SelfAttentionImpl::reset();
  }

  Tensor forward(const Tensor& x) {
    return add(x, residual_, norm_, is_training(),
               [&](const Tensor& y) { return attend(y); });
  }

  void reset() override {
    const int64_t width = sizes_.width;
    in_proj_weight_ =
        register_parameter("in_proj_weight", at::empty({3 * width, width}));
    in_proj_bias_ = register_parameter("in_proj_bias", at::zeros({3 * width}));
    out_proj_ = register_module("out_proj", Linear(width, width));
    torch::nn::init::xavier_uniform_(in_proj_weight_);
    torch::nn::init::zeros_(out_proj_->bias);
    norm_ = register_module("norm", norm_of(sizes_));
  }

  void pretty_print(std::ostream& stream) const override {
    stream << "gpipe::models::SelfAttention(" << sizes_.width
           << ", heads=" << sizes_.heads << ", norm=" << text_of(residual_.norm)
           << ")";
  }

 private:
  Tensor attend(const Tensor& x) {
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

  TransformerSizes sizes_;
  ResidualOptions residual_;
  double attention_dropout_;
  Tensor in_proj_weight_, in_proj_bias_;
  Linear out_proj_{nullptr};
  LayerNorm norm_{nullptr};
};
TORCH_MODULE(SelfAttention);

// Adds to x the result of two layers on each token by itself (3.3). Maps
// [batch, length, width] to the same shape.
class FeedForwardImpl : public torch::nn::Cloneable<FeedForwardImpl> {
 public:
  FeedForwardImpl(const TransformerSizes& sizes,
                  const ResidualOptions& residual, Activation activation)
      : sizes_(sizes), residual_(residual), activation_(activation) {
    FeedForwardImpl::reset();
  }

  Tensor forward(const Tensor& x) {
    return add(x, residual_, norm_, is_training(), [&](const Tensor& y) {
      Tensor inner = linear1_(y);
      inner =
          activation_ == Activation::kRelu ? at::relu(inner) : at::gelu(inner);
      return linear2_(dropped(inner, residual_.dropout, is_training()));
    });
  }

  void reset() override {
    linear1_ =
        register_module("linear1", Linear(sizes_.width, sizes_.feed_forward));
    linear2_ =
        register_module("linear2", Linear(sizes_.feed_forward, sizes_.width));
    norm_ = register_module("norm", norm_of(sizes_));
  }

  void pretty_print(std::ostream& stream) const override {
    stream << "gpipe::models::FeedForward(" << sizes_.width << ", "
           << sizes_.feed_forward << ", norm=" << text_of(residual_.norm)
           << ")";
  }

 private:
  TransformerSizes sizes_;
  ResidualOptions residual_;
  Activation activation_;
  Linear linear1_{nullptr}, linear2_{nullptr};
  LayerNorm norm_{nullptr};
};
TORCH_MODULE(FeedForward);

// A Linear with its own bias and the weight that a TokenEmbedding has stashed
// as "weight" in `tied` (3.4; Press and Wolf, arXiv 1608.05859).
//
// forward() throws c10::Error if nothing was stashed.
class TiedOutputImpl : public torch::nn::Cloneable<TiedOutputImpl>,
                       public Skippable {
 public:
  TiedOutputImpl(int64_t vocabulary, const Namespace& tied)
      : Skippable({{}, {kWeight}}), vocabulary_(vocabulary) {
    isolate(tied);
    TiedOutputImpl::reset();
  }

  Tensor forward(const Tensor& x) {
    return at::linear(x, *pop(kWeight), bias_);
  }

  void reset() override {
    bias_ = register_parameter("bias", at::zeros({vocabulary_}));
  }

  void pretty_print(std::ostream& stream) const override {
    stream << "gpipe::models::TiedOutput(" << vocabulary_ << ")";
  }

 private:
  int64_t vocabulary_;
  Tensor bias_;
};
TORCH_MODULE(TiedOutput);

// ---- The model

namespace {

constexpr char kName[] = "transformer";

void check_positive(const char* name, int64_t value) {
  TORCH_CHECK_VALUE(value >= 1, kName, ": ", name,
                    " must be at least 1, but is ", value);
}

void check_probability(const char* name, double value) {
  TORCH_CHECK_VALUE(value >= 0 && value < 1, kName, ": ", name,
                    " must be at least 0 and less than 1, but is ", value);
}

void check(const TransformerOptions& options) {
  check_positive("num_layers", options.num_layers());
  check_positive("width", options.width());
  check_positive("feed_forward", options.feed_forward());
  check_positive("heads", options.heads());
  check_positive("vocabulary", options.vocabulary());
  check_positive("sequence", options.sequence());
  check_probability("dropout", options.dropout());
  check_probability("attention_dropout", options.attention_dropout());
  TORCH_CHECK_VALUE(options.width() % options.heads() == 0, kName,
                    ": width must be a multiple of heads (", options.heads(),
                    "), but is ", options.width());
  TORCH_CHECK_VALUE(
      options.positions() != Positions::kSinusoidal || options.width() % 2 == 0,
      kName, ": width must be even with sinusoidal positions, but is ",
      options.width());
}

}  // namespace

torch::nn::Sequential transformer(const TransformerOptions& options) {
  check(options);
  const TransformerSizes sizes = {options.width(), options.feed_forward(),
                                  options.heads(), options.vocabulary(),
                                  options.sequence()};
  const ResidualOptions residual = {options.norm(), options.dropout()};
  const auto tied =
      options.tied_embeddings() ? std::optional(Namespace()) : std::nullopt;

  return stack({
      {"embedding",
       TokenEmbedding(sizes, options.positions(), options.dropout(), tied)},
      {"block",
       repeat(options.num_layers(),
              [&](int64_t) {
                return stack({
                    {"attention", SelfAttention(sizes, residual,
                                                options.attention_dropout())},
                    {"feed_forward",
                     FeedForward(sizes, residual, options.activation())},
                });
              })},
      {"norm",
       torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width()}))},
      tied ? Part("output", TiedOutput(options.vocabulary(), *tied))
           : Part("output",
                  torch::nn::Linear(options.width(), options.vocabulary())),
  });
}

}  // namespace gpipe::models
