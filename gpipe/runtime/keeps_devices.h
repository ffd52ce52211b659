// Modules that say themselves where their parameters are.
#pragma once

namespace gpipe {

// Beside torch::nn::Module, for modules whose parameters nobody else may move.
class KeepsDevices {
 protected:
  KeepsDevices() = default;
  virtual ~KeepsDevices() = default;
};

}  // namespace gpipe
