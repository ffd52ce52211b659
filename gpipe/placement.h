// Spreads a module tree over several devices, without a pipeline.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpipe/placement/device.h"
#include "gpipe/placement/tree.h"

namespace gpipe {

// A model that is too large for one device can be spread over several. Its
// parts then run one after the other; to run them at the same time, see
// gpipe.h. The modules need no changes:
//
//   struct Net : torch::nn::Module { ... };  // typed members, any forward()
//   auto net = std::make_shared<Net>();
//   gpipe::parallelize_pipeline(net, {{"", "cuda:0"},
//                                     {"body.late", "cuda:1"},
//                                     {"head", {"cuda:1", "cuda:0"}}});
//   net->forward(input).sum().backward();
//   std::cout << *net;  // with devices
//   gpipe::unparallelize_pipeline(net, "cuda:0");
//
// Names and meaning are those of vision_architectures' pipeline_parallelism.
// LibTorch's modules in C++ have no hooks before and after forward(), so
// operators move the data. Parameters and buffers carry a tag, and so does
// every tensor that is computed from them. Before an operator runs on a tagged
// tensor, its inputs are brought to one device. The tags hold all that the
// rules need, so the rules apply on every thread, and untagged tensors behave
// as usual.
//
// The first rule that applies decides. To bring a tensor means to copy it, and
// autograd differentiates through the copy.
//
//  1. An operator whose inputs are on one device runs there. CPU tensors
//     without dimensions that are only read may be mixed with other devices, as
//     in LibTorch. Copies (copy_, to) are not changed.
//  2. An operator that writes to an argument (x.add_(y)) runs on that
//     argument's device.
//  3. An operator that uses parameters or buffers of parallelized modules, or
//     tensors computed from these alone (weight.t()), runs on their device. If
//     they belong to several modules on different devices, it runs on the
//     processing device of the innermost parallelized module that contains
//     these modules.
//  4. Any other operator (a + b) runs on the device of its tagged inputs. If
//     these are on several devices, it runs on the processing device of M, the
//     innermost parallelized module that contains all modules that made the
//     inputs. For this rule, a value made in a module inside M counts as being
//     on that module's output device, if it has one.
//  5. If no rule gives a device, LibTorch reports the devices that differ. An
//     example is an operator on values of two models that no parallelized
//     module contains.
//
// So the tensors around a module move as follows:
//  - Input: operators that use the module's parameters bring it to the
//    processing device.
//  - Output of a module without children (Linear, Conv2d, LSTM, ...): each
//    result of an operator that uses the module's parameters is brought to the
//    output device.
//  - Output of a module that a Sequential calls: brought to the output device
//    at once.
//  - Output of any other module: brought to the output device when it meets
//    other values (rule 4), or at the end of placed_forward().
//  - A module without parameters runs on its processing device if a Sequential
//    calls it, else on the device of its input.
// Values are the same as on one device, since the same kernels compute them.
//
// Parameters and buffers remain the same objects, so existing optimizers keep
// working, and gradients move with them. A parameter shared by several modules
// stays one parameter. It is on the device of the deepest named module that has
// it or, among equally deep ones, of the last. State dicts, names and types do
// not change. A clone() follows the same rules until its original is
// unparallelized.
//
// Threads: several threads may call the modules at the same time if the modules
// allow this without placement. Do not call the functions below while a forward
// or backward of the module runs.
//
// Throws c10::ValueError, and changes nothing, if
//  - no module has a given name (the text lists the nearest names),
//  - LibTorch does not know a device, or this process does not have it,
//  - a module is already parallelized,
//  - a pointer or module holder is empty, or
//  - the module contains a GPipe, or a GPipe in it contains what has the name.
//  A
//    GPipe chooses its own devices. Do not place layers that a GPipe elsewhere
//    was made of: nothing in the module tells.

// A device, from "cuda:1", torch::Device(torch::kCUDA, 1) or torch::kCPU.
struct DeviceName {
  DeviceName(const std::string& name) : device(get_device(name)) {}
  DeviceName(const char* name) : device(get_device(name)) {}
  DeviceName(c10::Device named) : device(get_device(named)) {}
  DeviceName(c10::DeviceType type) : device(type) {}

  c10::Device device;
};

// The devices of a module: one device, or {processing device, output device}.
struct ModuleDevices {
  template <typename T, typename = std::enable_if_t<
                            std::is_convertible_v<const T&, DeviceName>>>
  ModuleDevices(const T& device) : processing(DeviceName(device)) {}
  ModuleDevices(DeviceName processing_device, DeviceName output_device)
      : processing(std::move(processing_device)),
        output(std::move(output_device)) {}

  DeviceName processing;
  std::optional<DeviceName> output;
};

// Devices by module name, as in named_modules(): "a.b.c"; "" is the root.
using DeviceMap = std::vector<std::pair<std::string, ModuleDevices>>;

namespace placement {

// Returns the module itself, with its own type. Throws c10::ValueError if the
// pointer or holder is empty.
template <typename M,
          std::enable_if_t<std::is_base_of_v<torch::nn::Module, M>, int> = 0>
M& module_of(M& module) {
  return module;
}
template <typename M>
M& module_of(const std::shared_ptr<M>& module) {
  TORCH_CHECK_VALUE(module, "there is no module in the pointer");
  return *module;
}
template <typename Holder, typename M = typename Holder::ContainedType>
M& module_of(const Holder& holder) {
  TORCH_CHECK_VALUE(!holder.is_empty(), "there is no module in the holder");
  return *holder.ptr();
}

// Returns the device of `name`, or nullopt if there is none.
inline std::optional<c10::Device> device_of(
    const std::optional<DeviceName>& name) {
  return name ? std::make_optional(name->device) : std::nullopt;
}

}  // namespace placement

// In all functions below, `module` is a Module, a shared_ptr to a Module or a
// module holder. Each function returns it.

// Moves the module's parameters and buffers to `processing_device`, except
// those of submodules that are parallelized themselves. From then on the
// module's inputs are brought to that device, and its output to
// `output_device`, if given.
template <typename M>
M parallelize_module(M&& module, DeviceName processing_device,
                     std::optional<DeviceName> output_device = std::nullopt) {
  placement::parallelize(
      placement::module_of(module),
      {processing_device.device, placement::device_of(output_device)});
  return std::forward<M>(module);
}

// Undoes parallelize_module(). The parameters and buffers move to
// `common_device`, if given, except those of submodules that stay parallelized.
// A module that is not parallelized is moved as well.
template <typename M>
M unparallelize_module(M&& module,
                       std::optional<DeviceName> common_device = std::nullopt) {
  placement::unparallelize(placement::module_of(module),
                           placement::device_of(common_device));
  return std::forward<M>(module);
}

// Calls parallelize_module() for each named module, level by level, so the
// deepest named module decides. Each tensor is moved once, to its final device.
// Name a device for the root, too: it is used for operators between the named
// modules. Throws c10::ValueError if a module of the tree is already
// parallelized.
template <typename M>
M parallelize_pipeline(M&& module, const DeviceMap& module_devices) {
  std::vector<std::pair<std::string, placement::Devices>> named;
  for (const auto& [name, devices] : module_devices) {
    named.emplace_back(
        name, placement::Devices{devices.processing.device,
                                 placement::device_of(devices.output)});
  }
  placement::parallelize(placement::module_of(module), named);
  return std::forward<M>(module);
}

// The same for a std::map or another map type.
template <typename M, typename Map, typename = typename Map::mapped_type>
M parallelize_pipeline(M&& module, const Map& module_devices) {
  return parallelize_pipeline(
      std::forward<M>(module),
      DeviceMap(module_devices.begin(), module_devices.end()));
}

// Undoes all calls of parallelize_module() and parallelize_pipeline() in the
// tree. All parameters and buffers move to `common_device`, if given.
template <typename M>
M unparallelize_pipeline(
    M&& module, std::optional<DeviceName> common_device = std::nullopt) {
  placement::unparallelize_all(placement::module_of(module),
                               placement::device_of(common_device));
  return std::forward<M>(module);
}

// Runs module->forward(inputs...) as with Python's hooks. The inputs, including
// nested data (see move_to_device()), are moved to the module's processing
// device first, and the result to its output device, if it has one. If the
// module is not parallelized, this is just the call.
//
// Parameters and buffers that have lost their tag are first moved back to their
// device. This happens after torch::load(), which puts tensors on the devices
// where they were saved.
template <typename M, typename... Inputs>
auto placed_forward(M&& module, Inputs&&... inputs) {
  auto& callee = placement::module_of(module);
  const placement::PlacePtr place = placement::place_of(callee);
  if (!place) return callee.forward(std::forward<Inputs>(inputs)...);
  placement::restore(callee);
  auto output = callee.forward(
      move_to_device(std::forward<Inputs>(inputs), place->processing)...);
  if (!place->output) return output;
  return move_to_device(std::move(output), *place->output);
}

}  // namespace gpipe

// Stream operators that print a module with its devices, wherever this header
// is included; a class's own pretty_print() cannot be replaced. Overload
// resolution prefers them to LibTorch's operators for Module and ModuleHolder.
// For a tree without devices they print the same text as LibTorch's.
namespace torch::nn {

inline std::ostream& operator<<(std::ostream& stream, Module& module) {
  return gpipe::placement::print_module(stream, module);
}

template <typename M, std::enable_if_t<std::is_base_of_v<Module, M> &&
                                           !std::is_same_v<Module, M>,
                                       int> = 0>
std::ostream& operator<<(std::ostream& stream, const M& module) {
  return gpipe::placement::print_module(stream, module);
}

template <
    typename Holder,
    std::enable_if_t<
        std::is_base_of_v<ModuleHolder<typename Holder::ContainedType>, Holder>,
        long> = 0>
std::ostream& operator<<(std::ostream& stream, const Holder& holder) {
  return gpipe::placement::print_module(stream, *holder);
}

}  // namespace torch::nn
