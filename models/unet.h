// U-Net for images as a flat Sequential, ready to be cut anywhere.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>

namespace gpipe::models {

// The simplified U-Net of torchgpipe's benchmarks, after Ronneberger et al.,
// "U-Net: convolutional networks for biomedical image segmentation" (arXiv
// 1505.04597), and Isensee et al., "No new-net" (arXiv 1809.10483).
//
//   depth            levels of the encoder and of the decoder, 1 to 20
//   num_convs        convolutions per level and at the bottom, at least 1;
//                    B in torchgpipe's tables
//   base_channels    of the first level, even, at least 2; C there
//   input_channels   at least 1
//   output_channels  at least 1
//
// Shapes: [batch, input_channels, height, width] to [batch, output_channels,
// height, width]. Height and width are any from 2^depth on, and one of them is
// at least 2^(depth + 1): InstanceNorm at the bottom wants more than one pixel.
//
// The layers: a convolution is "..._conv", "..._dropout", "..._norm",
// "..._relu". Level i of the encoder has "encoder_i_encode_0_conv" and so on,
// "encoder_i_skip", "encoder_i_down", and 2^i * base_channels channels; then
// come "bottleneck_0_0_conv" and so on, and the levels of the decoder,
// "decoder_0" the lowest, with "decoder_i_up", "decoder_i_skip",
// "decoder_i_decode_0_conv" and so on; at last "segment". The two "skip" layers
// of a level share a skip tensor (gpipe/skip.h). That is
// (2 depth + 1) 4 num_convs + 4 depth + 1 layers.
//
// Weights are drawn from LibTorch's default generator in the order of
// torchgpipe's model (the decoder from its highest level down, though that is
// used last), so that torch::manual_seed(s) gives the same weights there and
// here. There are no biases.
//
// Errors: c10::ValueError for an argument that is not allowed, or, from
// forward(), for an input of another shape.
// Threads: any. Calls at the same time share the generator, so that chance says
// which of them draws what.
torch::nn::Sequential unet(int64_t depth = 5, int64_t num_convs = 5,
                           int64_t base_channels = 64,
                           int64_t input_channels = 3,
                           int64_t output_channels = 1);

}  // namespace gpipe::models
