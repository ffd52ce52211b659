// The layers of a model by name, for messages.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <map>
#include <string>

namespace gpipe::trainer {

// By its name in the Sequential, what a layer is: "layer 17 (BatchNorm2d
// 'layer3_0_bn1')". Layers are counted from 0.
using LayerNames = std::map<std::string, std::string>;

// Threads: any, while no other one changes the model.
LayerNames layer_names(const torch::nn::Sequential& model);

}  // namespace gpipe::trainer
