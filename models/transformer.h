// A decoder-only Transformer as a flat Sequential that can be cut anywhere.
#pragma once

#include <torch/arg.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>

namespace gpipe::models {

// Position of LayerNorm: kPost is that of the paper, kPre that of Xiong et al.
// (arXiv 2002.04745).
enum class NormPlace { kPre, kPost };
enum class Positions { kSinusoidal, kLearned, kNone };
enum class Activation { kRelu, kGelu };

// The sizes of the model. The defaults are those of Transformer-L of GPipe
// (arXiv 1811.06965, table 1), with L = num_layers.
struct TransformerOptions {
  // Number of blocks, at least 1.
  TORCH_ARG(int64_t, num_layers) = 3;
  // Width of the activations between blocks, at least 1. It must be a multiple
  // of `heads`, and even with sinusoidal positions.
  TORCH_ARG(int64_t, width) = 2048;
  // Width inside the feed-forward layers, at least 1.
  TORCH_ARG(int64_t, feed_forward) = 8192;
  // Number of attention heads, at least 1.
  TORCH_ARG(int64_t, heads) = 32;
  // Number of different tokens, at least 1.
  TORCH_ARG(int64_t, vocabulary) = 32000;
  // Largest number of tokens in a sample, at least 1.
  TORCH_ARG(int64_t, sequence) = 1024;
  // Position of LayerNorm: before attention and feed-forward (kPre), or after
  // the residual sums (kPost), as in the first Transformer.
  TORCH_ARG(NormPlace, norm) = NormPlace::kPre;
  TORCH_ARG(Positions, positions) = Positions::kSinusoidal;
  TORCH_ARG(Activation, activation) = Activation::kRelu;
  // Dropout probabilities, 0 <= p < 1. `dropout` applies to the embedding, to
  // the output of each layer before it is added, and inside feed-forward.
  // `attention_dropout` applies to the attention weights; on a CPU LibTorch's
  // fused attention works only without it.
  TORCH_ARG(double, dropout) = 0.1;
  TORCH_ARG(double, attention_dropout) = 0.0;
  // Whether the embedding and the output share one matrix. It is a parameter of
  // the first layer, and reaches the last layer as a skip tensor
  // (gpipe/skip.h), also on another device, to which it is copied once per
  // step. So parameters() has it once, and its gradient is the sum of both
  // uses.
  TORCH_ARG(bool, tied_embeddings) = false;
};

// Returns a Transformer after Vaswani et al., "Attention is all you need"
// (arXiv 1706.03762), without an encoder. A token attends to itself and to the
// tokens before it.
//
// Shapes: tokens, int64 or int32, [batch, length] with 1 <= length <= sequence
// and values from 0 to vocabulary - 1, to logits, [batch, length, vocabulary].
//
// The layers: "embedding", then "block_k_attention" and "block_k_feed_forward"
// for each block k, then "norm" and "output", which makes 2 num_layers + 3.
// With the defaults for everything but num_layers = L the model has 50,358,272
// L + 131,108,096 parameters.
//
// Weights are drawn from LibTorch's default generator. Order and initializers
// are those of Python's torch.nn.TransformerEncoderLayer and torch.nn.Linear in
// the same model. The embedding is drawn from N(0, 1/width), and forward()
// multiplies it by sqrt(width).
//
// Throws c10::ValueError if an option is not allowed. forward() throws
// c10::ValueError if the input has another shape, dtype or (checked on a CPU
// only) a value out of range.
// Threads: may be called from any thread. Concurrent calls share the generator,
// so it is random which call draws which numbers.
torch::nn::Sequential transformer(const TransformerOptions& options = {});

}  // namespace gpipe::models
