// U-Net for images as a flat Sequential that can be cut anywhere.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>

namespace gpipe::models {

// Returns the simplified U-Net of torchgpipe's benchmarks, after Ronneberger et
// al., "U-Net: convolutional networks for biomedical image segmentation" (arXiv
// 1505.04597), and Isensee et al., "No new-net" (arXiv 1809.10483).
//
//   depth            levels of the encoder and of the decoder, 1 to 20
//   num_convs        convolutions per level and at the bottom, at least 1;
//                    B in torchgpipe's tables
//   base_channels    channels of the first level, even, at least 2;
//                    C in torchgpipe's tables
//   input_channels   at least 1
//   output_channels  at least 1
//
// Shapes: [batch, input_channels, height, width] to [batch, output_channels,
// height, width]. Height and width must be at least 2^depth, and one of them at
// least 2^(depth + 1), because InstanceNorm at the bottom needs more than one
// pixel.
//
// The layers: each convolution is "..._conv", "..._dropout", "..._norm",
// "..._relu". Level i of the encoder has 2^i * base_channels channels and the
// layers "encoder_i_encode_0_conv" and so on, "encoder_i_skip" and
// "encoder_i_down". Then come "bottleneck_0_0_conv" and so on. The levels of
// the decoder follow, from "decoder_0", the lowest: "decoder_i_up",
// "decoder_i_skip", "decoder_i_decode_0_conv" and so on. The last layer is
// "segment". The two "skip" layers of a level share a skip tensor
// (gpipe/skip.h). In total there are (2 depth + 1) 4 num_convs + 4 depth + 1
// layers.
//
// Weights are drawn from LibTorch's default generator in the order of
// torchgpipe's model (the decoder from its highest level down, although that
// level runs last). So torch::manual_seed(s) gives the same weights in both.
// There are no biases.
//
// Throws c10::ValueError if an argument is not allowed. forward() throws
// c10::ValueError if the input has another shape.
// Threads: may be called from any thread. Concurrent calls share the generator,
// so it is random which call draws which numbers.
torch::nn::Sequential unet(int64_t depth = 5, int64_t num_convs = 5,
                           int64_t base_channels = 64,
                           int64_t input_channels = 3,
                           int64_t output_channels = 1);

}  // namespace gpipe::models
