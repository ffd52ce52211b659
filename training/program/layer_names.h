// Descriptions of a model's layers for messages.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <map>
#include <string>

namespace gpipe::train_program {

// Descriptions by the layer's name in the Sequential: "layer 17 (BatchNorm2d
// 'layer3_0_bn1')". Layers count from 0.
using LayerNames = std::map<std::string, std::string>;

// Returns the descriptions of all layers of `model`. Threads: may be called
// from any thread while no other thread changes the model.
LayerNames layer_names(const torch::nn::Sequential& model);

}  // namespace gpipe::train_program
