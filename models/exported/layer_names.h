// Names of layers, after the modules of the Python model.
#pragma once

#include <string>
#include <vector>

#include "models/exported/plan.h"
#include "models/exported/program.h"

namespace gpipe::exported {

// Returns the path of the Python module that a layer belongs to: that of its
// first node with a weight, else of its first node that is in a module. A layer
// of the outermost module has its operator's name.
std::string layer_path(const Program& program, const LayerPlan& plan);

// Returns the names of layers in a Sequential, where a name cannot contain a
// dot: "layers_3_mlp" for "layers.3.mlp". Further layers of the same module get
// "_2", "_3", and so on.
std::vector<std::string> layer_names(const std::vector<std::string>& paths);

}  // namespace gpipe::exported
