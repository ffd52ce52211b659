// AmoebaNet-D for images as a flat Sequential, ready to be cut anywhere.
#pragma once

#include <torch/arg.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>

namespace gpipe::models {

// Its size, as in the papers.
struct AmoebaNetOptions {
  // At least 1.
  TORCH_ARG(int64_t, num_classes) = 10;

  // Normal cells, L in the papers: a multiple of 3, at least 3. The layers are
  // L + 6.
  TORCH_ARG(int64_t, num_layers) = 18;

  // D in the papers: a multiple of 8, at least 8, because the first cell works
  // on a half of them, and the wide kernels in it on a quarter of that.
  TORCH_ARG(int64_t, num_filters) = 512;

  // What the genotype calls "max_pool_3x3" has always been an average pool in
  // torchgpipe, whose throughput this model is compared with. True makes it
  // the maximum; the parameters stay the same.
  TORCH_ARG(bool, true_max_pool) = false;
};

// AmoebaNet-D (L, D) of Real et al., "Regularized evolution for image
// classifier architecture search" (arXiv 1802.01548), as in torchgpipe and in
// the tables of the GPipe paper (arXiv 1811.06965).
//
// Shapes: [batch, 3, height, width] to [batch, num_classes]. Height and width
// are multiples of 32, or one less, which need not be equal: four cells halve
// even sizes. Made for 224 x 224, where the classifier averages 7 x 7 pixels;
// from 7 to 13 it sees the first 7, as in torchgpipe, and else, where 7 x 7
// does not give one value, it averages all. BatchNorm in training mode wants
// more than one value per channel: a batch of at least 2, or images larger than
// 32 x 32.
//
// The layers: "stem1", a convolution; "stem2" and "stem3", reduction cells;
// "cell1_normal1" to "cell1_normal" + L/3, "cell2_reduction", "cell3_normal1"
// ..., "cell4_reduction", "cell5_normal1" ..., "classify". Layers from "stem2"
// on pass a std::tuple of two tensors: a cell's output, and that of the cell
// before it. Parameters have the names that they have in torchgpipe's model
// ("stem2.reduce1.1.weight").
//
// Weights are drawn from LibTorch's default generator in the order of
// torchgpipe's model, so that torch::manual_seed(s) gives the same weights
// there and here.
//
// Errors: c10::ValueError for an argument that is not allowed, or, from
// forward(), for an input of another shape.
// Threads: any. Calls at the same time share the generator, so that chance says
// which of them draws what.
torch::nn::Sequential amoebanetd(const AmoebaNetOptions& options);
torch::nn::Sequential amoebanetd(int64_t num_classes = 10,
                                 int64_t num_layers = 18,
                                 int64_t num_filters = 512);

}  // namespace gpipe::models
