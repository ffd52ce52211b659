// Public: a module tree of any kind over several devices, without a pipeline.
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
#include "gpipe/placement/move.h"
#include "gpipe/placement/print.h"
#include "gpipe/placement/tree.h"

namespace gpipe {

// A model that is too large for one device, in parts on several. They work one
// after the other (to have them work at the same time, see gpipe.h), and the
// modules need not know:
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
// Names and meaning are those of vision_architectures' pipeline_parallelism. As
// LibTorch's modules in C++ have no hooks before and after forward(), it is the
// operators that see to it: parameters and buffers carry a mark, whatever is
// computed from them too, and before an operator works on something marked, its
// inputs are brought to one device. What the rules need is in the marks alone,
// so that they hold on every thread, and other tensors aren't touched. The
// rules, the first one that applies; "is brought" is a copy that autograd goes
// through:
//
//  1. An operator whose inputs are on one device runs there. CPU tensors that
//     have no dimensions and are only read may be beside others, as ever;
//     copies (copy_, to) are left alone.
//  2. One that writes to an argument (x.add_(y)) runs where that argument is.
//  3. One that uses parameters or buffers of parallelized modules, or tensors
//     computed from these alone (weight.t()), runs where they are. Those of
//     several modules on different devices: on the processing device of the
//     innermost parallelized module that contains these modules.
//  4. Another one (a + b) runs where its marked inputs are; if these are on
//     several devices, on the processing device of the innermost parallelized
//     module M that contains all modules that they were made in. A value made
//     in a module inside of M counts for this as being on that module's output
//     device, if it has one.
//  5. Where these say nothing, as for two models that no parallelized module
//     contains, LibTorch reports the devices that differ.
//
// Hence a module's input is brought to its processing device by those operators
// that use its parameters, and its output to its output device: at once if the
// module has no children (Linear, Conv2d, LSTM, ...: the result of each
// operator that uses its parameters) or is called by a Sequential; else when a
// value meets others (rule 4), or at the end of placed_forward(). A module
// without parameters of its own works on its processing device if it is called
// by a Sequential, else where its input is. Values are those of one device,
// whose kernels do the work.
//
// Parameters and buffers remain the objects that they were, so optimizers go
// on; gradients move with them. A parameter of several modules stays one, on
// the device of the deepest of them that is named, of equally deep ones the
// last. state dicts, names and types don't change. A clone() follows the same
// rules, until its original is unparallelized. Modules may be called by several
// threads at once, if they can be without this; parallelizing and its undoing
// are not for while a forward or backward of the module runs.
//
// c10::ValueError, and nothing is done: a name that no module has (with the
// nearest ones that exist), a device that LibTorch or this process does not
// have, a module that is parallelized already, an empty module holder, a GPipe
// in the module or around it, whose devices are its own.

// "cuda:1", torch::Device(torch::kCUDA, 1), torch::kCPU.
struct DeviceName {
  DeviceName(const std::string& name) : device(get_device(name)) {}
  DeviceName(const char* name) : device(get_device(name)) {}
  DeviceName(c10::Device device) : device(get_device(device)) {}
  DeviceName(c10::DeviceType type) : device(type) {}

  c10::Device device;
};

// One device, or {processing device, output device}.
struct ModuleDevices {
  template <typename T, typename = std::enable_if_t<
                            std::is_convertible_v<const T&, DeviceName>>>
  ModuleDevices(const T& processing) : processing(DeviceName(processing)) {}
  ModuleDevices(DeviceName processing, DeviceName output)
      : processing(std::move(processing)), output(std::move(output)) {}

  DeviceName processing;
  std::optional<DeviceName> output;
};

// Module names, as in named_modules(): "a.b.c"; "" is the root.
using DeviceMap = std::vector<std::pair<std::string, ModuleDevices>>;

namespace placement {

// The module itself, of its own type.
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

inline std::optional<c10::Device> device_of(
    const std::optional<DeviceName>& name) {
  return name ? std::make_optional(name->device) : std::nullopt;
}

}  // namespace placement

// `module` is a Module, a shared_ptr to one or a module holder; all of these
// functions return it.

// The module's parameters and buffers to `processing_device`, except those of
// modules in it that are parallelized themselves. Its inputs are brought there,
// and its output to `output_device`, if there is one.
template <typename M>
M parallelize_module(M&& module, DeviceName processing_device,
                     std::optional<DeviceName> output_device = std::nullopt) {
  placement::parallelize(
      placement::module_of(module),
      {processing_device.device, placement::device_of(output_device)});
  return std::forward<M>(module);
}

// Undoes that. The parameters and buffers (not those of modules in it that stay
// parallelized) go to `common_device`, or stay where they are. A module that is
// not parallelized is moved all the same.
template <typename M>
M unparallelize_module(M&& module,
                       std::optional<DeviceName> common_device = std::nullopt) {
  placement::unparallelize(placement::module_of(module),
                           placement::device_of(common_device));
  return std::forward<M>(module);
}

// parallelize_module() for each of the named modules, level by level, so that
// the deepest named one decides. Each tensor is moved once, to where it ends
// up. A root device is recommended, for what is done between the named modules.
// No module of the tree may be parallelized yet.
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

// For a std::map or such.
template <typename M, typename Map, typename = typename Map::mapped_type>
M parallelize_pipeline(M&& module, const Map& module_devices) {
  return parallelize_pipeline(
      std::forward<M>(module),
      DeviceMap(module_devices.begin(), module_devices.end()));
}

// Undoes all of parallelize_module() and parallelize_pipeline() in the tree.
// All of its parameters and buffers go to `common_device`, or stay where they
// are.
template <typename M>
M unparallelize_pipeline(
    M&& module, std::optional<DeviceName> common_device = std::nullopt) {
  placement::unparallelize_all(placement::module_of(module),
                               placement::device_of(common_device));
  return std::forward<M>(module);
}

// module->forward(inputs...) as Python's hooks would have it: the inputs,
// nested data included (move_to_device()), are on the module's processing
// device when it begins, and what it returns is on its output device, if it has
// one. For a module that isn't parallelized just the call. Parameters and
// buffers that have lost their mark go back to their device before:
// torch::load() brings what it loads to where it was when it was saved,
// parallelized or not.
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

// A module that is streamed is printed with its devices, where this header is
// included: the class's own pretty_print() cannot be replaced. These are nearer
// to a user's type than LibTorch's operators for Module and ModuleHolder.
// Without devices in the tree they print what LibTorch's print.
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
