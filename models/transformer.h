// A decoder-only Transformer as a flat Sequential, ready to be cut anywhere.
#pragma once

#include <torch/arg.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>

#include "models/transformer_layers.h"

namespace gpipe::models {

// The defaults are the Transformer-L of GPipe (arXiv 1811.06965, table 1), with
// L = num_layers.
struct TransformerOptions {
  // Blocks, at least 1.
  TORCH_ARG(int64_t, num_layers) = 3;
  // Of the model: what flows between the blocks, at least 1; a multiple of
  // `heads`, and even with sinusoidal positions.
  TORCH_ARG(int64_t, width) = 2048;
  // Of the feed-forward layers, at least 1.
  TORCH_ARG(int64_t, feed_forward) = 8192;
  // Of the attention, at least 1.
  TORCH_ARG(int64_t, heads) = 32;
  // Different tokens, at least 1.
  TORCH_ARG(int64_t, vocabulary) = 32000;
  // Tokens in a sample, at most; at least 1.
  TORCH_ARG(int64_t, sequence) = 1024;
  // Where LayerNorm stands: before attention and feed-forward, or after the
  // sums with what goes past them, as in the first Transformer.
  TORCH_ARG(NormPlace, norm) = NormPlace::kPre;
  TORCH_ARG(Positions, positions) = Positions::kSinusoidal;
  TORCH_ARG(Activation, activation) = Activation::kRelu;
  // Probabilities, 0 <= p < 1: of the embedding, of what each layer adds, and
  // inside of feed-forward; and of the attention's weights. (On a CPU
  // LibTorch's fused attention is without dropout only.)
  TORCH_ARG(double, dropout) = 0.1;
  TORCH_ARG(double, attention_dropout) = 0.0;
  // One matrix for the embedding and the output. It is a parameter of the first
  // layer, and reaches the last as a skip tensor (gpipe/skip.h), wherever that
  // is: on another device each micro-batch brings a copy. So parameters() has
  // it once, and its gradient is the sum of both.
  TORCH_ARG(bool, tied_embeddings) = false;
};

// After Vaswani et al., "Attention is all you need" (arXiv 1706.03762), without
// an encoder. A token sees those before it and itself.
//
// Shapes: tokens, int64 or int32, [batch, length] with 1 <= length <= sequence
// and values from 0 to vocabulary - 1, to logits, [batch, length, vocabulary].
//
// The layers: "embedding", then "block_k_attention" and "block_k_feed_forward"
// for each block k, then "norm" and "output": 2 num_layers + 3. With the
// defaults for all but num_layers = L they have 50,358,272 L + 131,108,096
// parameters.
//
// Weights are drawn from LibTorch's default generator in the order, and by the
// initialisers, of Python's torch.nn.TransformerEncoderLayer and
// torch.nn.Linear used for the same; those of the embedding from N(0, 1/width),
// which is made up for in forward().
//
// Errors: c10::ValueError for an option that is not allowed, or, from
// forward(), for an input of another shape, dtype or (on a CPU) value.
// Threads: any. Calls at the same time share the generator, so that chance says
// which of them draws what.
torch::nn::Sequential transformer(const TransformerOptions& options = {});

}  // namespace gpipe::models
