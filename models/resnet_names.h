// The names of ResNet's tensors elsewhere.
#pragma once

#include "weights/names.h"

namespace gpipe::models {

// From the names in the state dict of our resnet101() (or resnet50()) to those
// of torchvision's model of the same name, in the order of both:
// "layer1_0_conv1.weight" is "layer1.0.conv1.weight" there,
// "layer1_0_residual.downsample.0.weight" is "layer1.0.downsample.0.weight".
// 626 (320) names. To read torchvision's weights:
//
//   load_state_dict(*model, rename(read_torch_file(path),
//                                  inverse(torchvision_resnet101_names())));
//
// Threads: pure functions.
NameTable torchvision_resnet101_names();
NameTable torchvision_resnet50_names();

}  // namespace gpipe::models
