#include "gpipe/placement/slots.h"

#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpipe/placement/move.h"
#include "gpipe/placement/nodes.h"

namespace gpipe::placement {
namespace {

using torch::nn::AnyModule;
using torch::nn::AnyModulePlaceholder;
using torch::nn::AnyValue;
using torch::nn::Module;

// The type name that LibTorch shows for a wrapped module.
struct ModuleWithDevices {};

// A device that a value is moved to before or after a module runs.
struct Stop {
  PlacePtr place;
  bool output;  // true: the place's output device; false: the processing device
};

// Moves a value if it is a T. Returns whether it is.
template <typename T>
bool move_if(AnyValue& value, c10::Device device) {
  T* const data = value.try_get<T>();
  if (data) *data = move_to_device(std::move(*data), device);
  return data != nullptr;
}

// Moves a value if it is of one of the types.
template <typename... Types>
void move_any(AnyValue& value, c10::Device device) {
  [[maybe_unused]] const bool moved = (move_if<Types>(value, device) || ...);
}

// Moves a value of one of the types that modules pass to each other. Values of
// other types are not moved.
void move_value(AnyValue& value, c10::Device device) {
  using T = at::Tensor;
  using Pair = std::tuple<T, T>;
  move_any<T, std::optional<T>, std::vector<T>, std::map<std::string, T>,
           std::unordered_map<std::string, T>, std::pair<T, T>,
           std::optional<Pair>, std::tuple<T, Pair>,  // LSTM
           std::tuple<T>, Pair, std::tuple<T, T, T>, std::tuple<T, T, T, T>,
           std::tuple<T, T, T, T, T>, std::tuple<T, T, T, T, T, T>,
           std::tuple<T, T, T, T, T, T, T>, std::tuple<T, T, T, T, T, T, T, T>>(
      value, device);
}

void go(const std::vector<Stop>& stops, AnyValue& value) {
  // A stop is inactive if its module was unparallelized after the Sequential
  // had been copied.
  for (const Stop& stop : stops) {
    if (!stop.place->active) continue;
    move_value(value,
               stop.output ? *stop.place->output : stop.place->processing);
  }
}

// The content of a wrapped AnyModule.
struct Wrapper : AnyModulePlaceholder {
  Wrapper(std::unique_ptr<AnyModulePlaceholder> module,
          std::vector<Stop> before, std::vector<Stop> after)
      : AnyModulePlaceholder(typeid(ModuleWithDevices)),
        module(std::move(module)),
        before(std::move(before)),
        after(std::move(after)) {}

  AnyValue forward(std::vector<AnyValue>&& arguments) override {
    for (AnyValue& each : arguments) go(before, each);
    AnyValue result = module->forward(std::move(arguments));
    go(after, result);
    return result;
  }

  std::shared_ptr<Module> ptr() override { return module->ptr(); }

  std::unique_ptr<AnyModulePlaceholder> copy() const override {
    return std::make_unique<Wrapper>(module->copy(), before, after);
  }

  std::unique_ptr<AnyModulePlaceholder> clone_module(
      std::optional<c10::Device> device) const override {
    return module->clone_module(device);
  }

  std::unique_ptr<AnyModulePlaceholder> module;
  std::vector<Stop> before, after;
};

// The stops that a slot gets.
struct Change {
  std::vector<Stop> before, after;
};

}  // namespace

// Arguments for the constructor below. The new AnyModule takes the content of
// `slot` without its wrapper, if it had one, and gets a new wrapper if `change`
// has any stops.
struct Rewrapped {
  AnyModule* slot;
  const void* change;  // a Change
};

}  // namespace gpipe::placement

// AnyModule has no constructor for a placeholder. So this specialises its
// constructor template for module types, with a type of ours.
template <>
torch::nn::AnyModule::AnyModule(
    std::shared_ptr<gpipe::placement::Rewrapped> from)
    : content_(std::move(from->slot->content_)) {
  const auto& change =
      *static_cast<const gpipe::placement::Change*>(from->change);
  if (auto* const wrapper =
          dynamic_cast<gpipe::placement::Wrapper*>(content_.get())) {
    content_ =
        std::unique_ptr<AnyModulePlaceholder>(std::move(wrapper->module));
  }
  if (content_ && (!change.before.empty() || !change.after.empty())) {
    content_ = std::make_unique<gpipe::placement::Wrapper>(
        std::move(content_), change.before, change.after);
  }
}

namespace gpipe::placement {

void wrap_slots(Module& root,
                c10::function_ref<PlacePtr(const Module&)> place_of) {
  std::set<const Module*> done;
  for (const Node& node : nodes_of(root)) {
    auto* const sequential =
        dynamic_cast<torch::nn::SequentialImpl*>(node.module);
    if (!sequential || !done.insert(sequential).second) continue;
    const PlacePtr outer = place_of(*sequential);
    const auto count = static_cast<std::size_t>(sequential->size());
    std::size_t k = 0;
    for (AnyModule& slot : *sequential) {
      if (slot.is_empty()) continue;
      const std::shared_ptr<Module> module = slot.ptr();
      const PlacePtr place = place_of(*module);
      const bool computes = !tensors_of(*module).empty();
      Change change;
      if (!computes) {
        if (k == 0 && outer) change.before.push_back({outer, false});
        if (place) change.before.push_back({place, false});
      }
      const bool gives_out = computes && module->children().empty();
      if (place && place->output && !gives_out) {
        change.after.push_back({place, true});
      }
      if (++k == count && outer && outer->output) {
        change.after.push_back({outer, true});
      }
      slot = AnyModule(std::make_shared<Rewrapped>(Rewrapped{&slot, &change}));
    }
  }
}

}  // namespace gpipe::placement
