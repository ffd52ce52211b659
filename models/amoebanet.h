// AmoebaNet-D for images as a flat Sequential that can be cut anywhere.
#pragma once

#include <torch/arg.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>

namespace gpipe::models {

// The size of the model, named as in the papers.
struct AmoebaNetOptions {
  // At least 1.
  TORCH_ARG(int64_t, num_classes) = 10;

  // Number of normal cells, L in the papers: a multiple of 3, at least 3. The
  // model has L + 6 layers.
  TORCH_ARG(int64_t, num_layers) = 18;

  // D in the papers: a multiple of 8, at least 8. The first cell uses half of
  // these filters, and the wide kernels in it use a quarter of that half.
  TORCH_ARG(int64_t, num_filters) = 512;

  // If true, the genotype's "max_pool_3x3" is a maximum pool. If false, it is
  // an average pool, as it has always been in torchgpipe, whose throughput this
  // model is compared with. The parameters are the same.
  TORCH_ARG(bool, true_max_pool) = false;
};

// Returns AmoebaNet-D (L, D) of Real et al., "Regularized evolution for image
// classifier architecture search" (arXiv 1802.01548), as in torchgpipe and in
// the tables of the GPipe paper (arXiv 1811.06965).
//
// Shapes: [batch, 3, height, width] to [batch, num_classes]. Height and width
// must each be a multiple of 32, or one less, because four cells halve even
// sizes. They need not be equal. The model is made for 224 x 224, where the
// classifier averages 7 x 7 values. If a side gives 8 to 13 values, only the
// first 7 count, as in torchgpipe. Where a 7 x 7 pool does not give exactly one
// value, the classifier averages all values. BatchNorm in training mode needs
// more than one value per channel: a batch of at least 2, or images larger than
// 32 x 32.
//
// The layers: "stem1", a convolution; "stem2" and "stem3", reduction cells;
// "cell1_normal1" to "cell1_normal" + L/3, "cell2_reduction", "cell3_normal1"
// ..., "cell4_reduction", "cell5_normal1" ..., "classify". Layers from "stem2"
// on pass a std::tuple of two tensors: a cell's output, and the output of the
// cell before it. Parameters have the same names as in torchgpipe's model
// ("stem2.reduce1.1.weight").
//
// Weights are drawn from LibTorch's default generator in the order of
// torchgpipe's model. So torch::manual_seed(s) gives the same weights in both.
//
// Throws c10::ValueError if an argument is not allowed. forward() throws
// c10::ValueError if the input has another shape.
// Threads: may be called from any thread. Concurrent calls share the generator,
// so it is random which call draws which numbers.
torch::nn::Sequential amoebanetd(const AmoebaNetOptions& options);
torch::nn::Sequential amoebanetd(int64_t num_classes = 10,
                                 int64_t num_layers = 18,
                                 int64_t num_filters = 512);

}  // namespace gpipe::models
