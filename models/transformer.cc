#include "models/transformer.h"

#include <c10/util/Exception.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <optional>

#include "gpipe/sequential.h"
#include "gpipe/skip.h"

namespace gpipe::models {
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
