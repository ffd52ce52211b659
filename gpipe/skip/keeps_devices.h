// A base class that marks pipelines among modules: they place their own
// parameters and move skip tensors between their own layers.
#pragma once

namespace gpipe::internal {

// A base class beside torch::nn::Module for modules that keep control of their
// devices. Other code must not move their parameters. The skip tensors of their
// layers stay inside the module and are not visible to an outer model.
class KeepsDevices {
 protected:
  KeepsDevices() = default;
  virtual ~KeepsDevices() = default;
};

}  // namespace gpipe::internal
