// Modules that say themselves where their parameters are, and that bring skip
// tensors from one of their layers to another: pipelines.
#pragma once

namespace gpipe {

// Beside torch::nn::Module, for modules whose parameters nobody else may move,
// and whose layers' skip tensors are nobody else's.
class KeepsDevices {
 protected:
  KeepsDevices() = default;
  virtual ~KeepsDevices() = default;
};

}  // namespace gpipe
