// The names of ResNet's tensors in torchvision.
#pragma once

#include "models/weights/names.h"

namespace gpipe::models {

// Return a table from the names in the state dict of resnet101() or resnet50()
// to the names in torchvision's model, in the order of both:
// "layer1_0_conv1.weight" is "layer1.0.conv1.weight" in torchvision, and
// "layer1_0_residual.downsample.0.weight" is "layer1.0.downsample.0.weight".
// The tables have 626 and 320 names. To read torchvision's weights:
//
//   load_state_dict(*model, rename(read_torch_file(path),
//                                  inverse(torchvision_resnet101_names())));
//
// Threads: pure functions.
NameTable torchvision_resnet101_names();
NameTable torchvision_resnet50_names();

}  // namespace gpipe::models
