// Residual networks for images as flat Sequentials that can be cut anywhere.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>

namespace gpipe::models {

// Return ResNet-101 and ResNet-50 of He et al., "Deep residual learning for
// image recognition" (arXiv 1512.03385), with the stride in the 3x3 convolution
// of a bottleneck, as in torchvision.
//
// Shapes: [batch, 3, height, width] to [batch, num_classes]. The models are
// made for images of 224 x 224, but accept any from 1 x 1 on. BatchNorm in
// training mode needs more than one value per channel: a batch of at least 2,
// or images larger than 32 x 32.
//
// The layers: "conv1", "bn1", "relu", "maxpool"; 11 per bottleneck, named
// "layer1_0_identity" to "layer4_2_relu3", whose shortcuts are skip tensors
// (gpipe/skip.h); "avgpool", "flat", "fc". ResNet-101 has 370 layers, ResNet-50
// has 183.
//
// Weights are drawn from LibTorch's default generator in the order of
// torchgpipe's and torchvision's models: first the default of each layer when
// it is made, then Kaiming normal values for every convolution. So
// torch::manual_seed(s) gives the same weights in all of them.
//
// Throw c10::ValueError if `num_classes` < 1. forward() throws c10::Error if
// the input has another shape.
// Threads: may be called from any thread. Concurrent calls share the generator,
// so it is random which call draws which numbers.
torch::nn::Sequential resnet101(int64_t num_classes = 1000);
torch::nn::Sequential resnet50(int64_t num_classes = 1000);

}  // namespace gpipe::models
