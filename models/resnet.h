// Residual networks for images as flat Sequentials, ready to be cut anywhere.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>

namespace gpipe::models {

// ResNet-101 and ResNet-50 of He et al., "Deep residual learning for image
// recognition" (arXiv 1512.03385), with the stride in the 3x3 convolution of a
// bottleneck, as in torchvision.
//
// Shapes: [batch, 3, height, width] to [batch, num_classes]; made for images
// of 224 x 224, any from 1 x 1 on will do (BatchNorm in training mode wants
// more than one value per channel, that is a batch of at least 2, or images
// larger than 32 x 32).
//
// The layers: "conv1", "bn1", "relu", "maxpool"; 11 per bottleneck, named
// "layer1_0_identity" to "layer4_2_relu3", whose shortcuts are skip tensors
// (gpipe/skip.h); "avgpool", "flat", "fc". That is 370 for ResNet-101 and 183
// for ResNet-50.
//
// Weights are drawn from LibTorch's default generator in the order of
// torchgpipe's and torchvision's models (first each layer's default when it is
// made, then Kaiming normal values for every convolution), so that
// torch::manual_seed(s) gives the same weights there and here.
//
// Errors: c10::ValueError for num_classes < 1; c10::Error from forward() for an
// input of another shape.
// Threads: any. Calls at the same time share the generator, so that chance says
// which of them draws what.
torch::nn::Sequential resnet101(int64_t num_classes = 1000);
torch::nn::Sequential resnet50(int64_t num_classes = 1000);

}  // namespace gpipe::models
