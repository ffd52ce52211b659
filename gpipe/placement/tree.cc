#include "gpipe/placement/tree.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_has_compatible_shallow_copy_type.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpipe/libtorch/dispatcher.h"
#include "gpipe/placement/device.h"
#include "gpipe/placement/place.h"
#include "gpipe/skip/skippable.h"

namespace gpipe::placement {
namespace {

using torch::nn::Module;

// A module at one position of a tree. A shared module has several nodes.
struct Node {
  torch::nn::Module* module;
  std::string name;  // "a.b.c"; "" for the root
  std::size_t depth;
  std::size_t parent;  // index of the parent; 0 for the root
};

// Returns all nodes level by level, each level in order of registration.
std::vector<Node> nodes_of(Module& root) {
  std::vector<Node> nodes = {{&root, "", 0, 0}};
  for (std::size_t k = 0; k < nodes.size(); ++k) {
    for (const auto& child : nodes[k].module->named_children()) {
      if (!child.value()) continue;
      const std::string prefix = nodes[k].depth ? nodes[k].name + "." : "";
      nodes.push_back(
          {child.value().get(), prefix + child.key(), nodes[k].depth + 1, k});
    }
  }
  return nodes;
}

// Returns the defined parameters and buffers of `module`, and, with `recurse`,
// those of all modules in it.
std::vector<at::Tensor> tensors_of(const Module& module, bool recurse = true) {
  std::vector<at::Tensor> tensors;
  for (const auto& list :
       {module.parameters(recurse), module.buffers(recurse)}) {
    std::copy_if(list.begin(), list.end(), std::back_inserter(tensors),
                 [](const at::Tensor& each) { return each.defined(); });
  }
  return tensors;
}

// An allocator that keeps `kept` alive until all memory it allocated is freed.
template <typename T>
struct Keeper {
  using value_type = T;

  explicit Keeper(std::shared_ptr<const void> kept) : kept(std::move(kept)) {}
  template <typename Other>
  Keeper(const Keeper<Other>& other) : kept(other.kept) {}

  T* allocate(std::size_t count) { return std::allocator<T>().allocate(count); }
  void deallocate(T* memory, std::size_t count) {
    std::allocator<T>().deallocate(memory, count);
  }

  template <typename Other>
  bool operator==(const Keeper<Other>& other) const {
    return kept == other.kept;
  }

  std::shared_ptr<const void> kept;
};

}  // namespace

Witness::Witness(const Module& module) : life_(module.weak_from_this()) {
  if (lives()) return;
  // The module has no owner. But it derives from enable_shared_from_this and so
  // contains a weak_ptr to itself, which the first shared_ptr to it sets. Make
  // one that owns nothing and destroy it at once: its control block is kept by
  // that weak_ptr. So the block's memory, and with it the allocator, is freed
  // with the module.
  const auto life = std::make_shared<char>();
  life_ = life;
  const std::shared_ptr<const Module> gone_at_once(
      &module, [](const Module*) {}, Keeper<char>(life));
}

namespace {

// ---- Moves parameters and buffers in place.

void set_data(const at::Tensor& tensor, const at::Tensor& data) {
  if (at::_has_compatible_shallow_copy_type(tensor, data)) {
    tensor.set_data(data);
    return;
  }
  // Does what set_data() does, for pairs of backends that it does not accept.
  // All of these are plain TensorImpls.
  if (auto* const meta = torch::autograd::impl::get_autograd_meta(tensor)) {
    const std::lock_guard<std::mutex> lock(meta->mutex_);
    meta->grad_accumulator_.reset();  // it stores the device
  }
  tensor.unsafeGetTensorImpl()->shallow_copy_from(data.getIntrusivePtr());
}

// Moves a leaf and its gradient to `device`, as Module::to(device) does. The
// tensor object stays the same, so optimizers and other owners keep a valid
// reference. Unlike Module::to(), this also works for devices that set_data()
// refuses (meta, PrivateUse1). Throws LibTorch's error if the values cannot be
// copied to `device`.
void set_device(const at::Tensor& tensor, c10::Device device) {
  const at::NoGradGuard no_grad;
  // With several meta devices, tensors are created on the current one.
  const c10::DeviceGuard guard(device);
  if (tensor.device() != device) set_data(tensor, tensor.to(device));
  const at::Tensor gradient = tensor.grad();
  if (gradient.defined() && gradient.device() != device) {
    set_data(gradient, gradient.detach().to(device));
  }
}

// ---- Wraps the modules in a Sequential. Typed members cannot be wrapped.

using torch::nn::AnyModule;
using torch::nn::AnyModulePlaceholder;
using torch::nn::AnyValue;

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
namespace {

// Wraps modules in all Sequentials of the tree whose tensors are not moved by
// operators that use parameters:
// - If a module has no parameters or buffers, its wrapper moves the inputs.
// - If it has none, or has children, its wrapper moves the output.
// - The wrapper of the last module also moves the output of the Sequential.
// Wrappers of an earlier call are removed.
//
// Only the way in which Sequential::forward() calls a module changes: children,
// names and printed text do not. While a module is wrapped, Sequential::at<T>()
// throws for it.
// `place_of`: returns the place of a module, or null.
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

// ---- The parallelized modules of the process.

// Returns whether a tensor of the module is tagged with `place`, which is
// active, or with a place inside it.
bool is_marked_by(const Module& module, const PlacePtr& place) {
  const auto tensors = tensors_of(module);
  return std::ranges::any_of(tensors, [&](const at::Tensor& each) {
    const Tag* const tag = Tag::of(each);
    return tag && common_place(active_place(tag->place), place) == place;
  });
}

// A parallelized module with its place.
struct Entry {
  Entry(const Module& module, PlacePtr place)
      : place(std::move(place)),
        owned(!module.weak_from_this().expired()),
        witness(module) {}

  // Returns whether `module`, at the registered address, is the registered
  // module. The module may have got its first shared_ptr after registration,
  // for example if its constructor called parallelize_module().
  bool is_of(const Module& module) const {
    return witness.lives() || (!owned && !module.weak_from_this().expired() &&
                               is_marked_by(module, place));
  }

  // Returns whether the entry can be erased: the module cannot be found again.
  bool is_over() const {
    return !witness.lives() && (owned || place.use_count() == 1);
  }

  PlacePtr place;
  bool owned;  // by a shared_ptr, at the time of registration
  Witness witness;
};

struct Registry {
  std::mutex mutex;
  std::map<const Module*, Entry> entries;

  // Never destroyed, since modules may be global variables.
  static Registry& get() {
    static auto* const registry = new Registry();
    return *registry;
  }

  PlacePtr find(const Module& module) {
    const auto found = entries.find(&module);
    if (found == entries.end() || !found->second.is_of(module)) return nullptr;
    Entry& entry = found->second;
    if (!entry.witness.lives()) entry = Entry(module, entry.place);
    return entry.place;
  }

  // Adds an entry and erases those of destroyed modules.
  void add(const Module& module, PlacePtr place) {
    std::erase_if(entries, [](auto& each) { return each.second.is_over(); });
    entries.insert_or_assign(&module, Entry(module, std::move(place)));
  }

  // Returns the parallelized modules that contain `module`, the innermost
  // first. Searches all trees: they are small and calls are rare.
  std::vector<Module*> around(const Module& module) const {
    std::multimap<std::size_t, Module*> found;
    for (const auto& each : entries) {
      auto* const outer = const_cast<Module*>(each.first);
      if (outer == &module || !each.second.witness.lives()) continue;
      const auto inner = nodes_of(*outer);
      if (std::ranges::any_of(inner, [&](const Node& node) {
            return node.module == &module;
          })) {
        found.emplace(inner.size(), outer);
      }
    }
    std::vector<Module*> modules;
    for (const auto& each : found) modules.push_back(each.second);
    return modules;
  }

  PlacePtr place_around(const Module& module) {
    const auto modules = around(module);
    return modules.empty() ? nullptr : find(*modules.front());
  }
};

std::string text_of(const Place& place) {
  std::string text = place.processing.str();
  if (place.output) text += " -> " + place.output->str();
  return text;
}

// A tensor of a tree and the place that it belongs to.
struct Owner {
  at::Tensor tensor;
  PlacePtr place;         // null if no parallelized module contains it
  std::size_t depth = 0;  // of the module that the place belongs to
  bool direct = false;
};

struct Owners {
  std::vector<Owner> list;
  // Each place in the tree, with the place around it.
  std::vector<std::pair<PlacePtr, PlacePtr>> parents;
};

// Returns the place of each tensor below `root`. A tensor belongs to the
// deepest module that has it and a place; among equally deep ones, to the last.
// `find` returns the place of a module, `around` is the place around `root`.
template <typename Find>
Owners owners_of(Module& root, const PlacePtr& around, const Find& find) {
  Owners owners;
  std::map<const at::TensorImpl*, std::size_t> index;
  std::set<const Place*> seen;
  const std::vector<Node> nodes = nodes_of(root);
  struct Within {
    PlacePtr place;
    std::size_t depth = 0;
  };
  std::vector<Within> within(nodes.size());
  for (std::size_t k = 0; k < nodes.size(); ++k) {
    const Node& node = nodes[k];
    within[k] = k == 0 ? Within{around, 0} : within[node.parent];
    const PlacePtr own = find(*node.module);
    if (own) {
      if (seen.insert(own.get()).second) {
        owners.parents.emplace_back(own, within[k].place);
      }
      within[k] = {own, node.depth + 1};
    }
    const bool direct = own && node.module->children().empty();
    for (at::Tensor& tensor : tensors_of(*node.module, /*recurse=*/false)) {
      const auto [entry, is_new] =
          index.emplace(tensor.unsafeGetTensorImpl(), owners.list.size());
      Owner owner{std::move(tensor), within[k].place, within[k].depth, direct};
      if (is_new) {
        owners.list.push_back(std::move(owner));
      } else if (Owner& known = owners.list[entry->second];
                 owner.depth >= known.depth) {
        known = std::move(owner);
      }
    }
  }
  return owners;
}

void mark(const Owner& owner) {
  const Tag* const tag = Tag::of(owner.tensor);
  if (!owner.place) {
    Tag::remove(owner.tensor);
  } else if (!tag || tag->place != owner.place || tag->direct != owner.direct ||
             tag->kind != Tag::Kind::kWeight) {
    TORCH_CHECK_TYPE(
        Tag::set(owner.tensor,
                 c10::make_intrusive<Tag>(owner.place, Tag::Kind::kWeight,
                                          owner.direct)),
        "a parameter on ", owner.tensor.device(),
        " cannot be placed: its backend keeps data of its own in its tensors "
        "(BackendMeta)");
  }
}

void unmark_gradient(const at::Tensor& tensor) {
  const at::Tensor& gradient = tensor.grad();
  if (gradient.defined()) Tag::remove(gradient);
}

// Wraps slots below `root`, and in the parallelized modules around it, whose
// Sequentials may call `root`.
template <typename Find>
void wrap_all_slots(Module& root, const Find& find) {
  wrap_slots(root, find);
  for (Module* outer : Registry::get().around(root)) wrap_slots(*outer, find);
}

// Throws c10::ValueError if a pipeline would be part of a parallelized module
// or contain one. The pipeline would then find its parameters on other devices.
template <typename Find>
void check_pipelines(Module& root, const PlacePtr& around, const Find& find) {
  const std::vector<Node> nodes = nodes_of(root);
  struct Within {
    bool place = false;
    const Node* pipeline = nullptr;
  };
  std::vector<Within> within(nodes.size());
  for (std::size_t k = 0; k < nodes.size(); ++k) {
    const Node& node = nodes[k];
    within[k] = k == 0 ? Within{around != nullptr} : within[node.parent];
    if (find(*node.module)) within[k].place = true;
    if (dynamic_cast<const internal::KeepsDevices*>(node.module)) {
      within[k].pipeline = &node;
    }
    if (!within[k].place || !within[k].pipeline) continue;
    const Node& pipeline = *within[k].pipeline;
    TORCH_CHECK_VALUE(false, "the module '", pipeline.name, "' (",
                      pipeline.module->name(), ") of '", root.name(),
                      "' is a pipeline, which chooses the devices of its "
                      "parameters itself; name only modules that neither "
                      "contain it nor are part of it, and choose its devices "
                      "when you construct it");
  }
}

// Gives `places` to their modules. On error nothing has been registered.
void apply(Module& root, std::map<Module*, PlacePtr> places) {
  Registry& registry = Registry::get();
  const PlacePtr around = registry.place_around(root);
  const auto find = [&](const Module& module) {
    const auto entry = places.find(const_cast<Module*>(&module));
    return entry == places.end() ? registry.find(module) : entry->second;
  };
  check_pipelines(root, around, find);
  const Owners owners = owners_of(root, around, find);
  for (const Owner& owner : owners.list) {
    TORCH_CHECK_TYPE(
        !owner.place || Tag::can_be_on(owner.tensor), "a parameter on ",
        owner.tensor.device(),
        " cannot be placed: it has an adapter (call merge_lora() first), or "
        "its backend keeps data of its own in its tensors (BackendMeta)");
  }
  // Steps that can fail come first.
  for (const Owner& owner : owners.list) {
    // Tensors of submodules that are not in `places` but have a place are on
    // their device already, so this does not move them.
    if (owner.place) set_device(owner.tensor, owner.place->processing);
  }
  for (const auto& [place, parent] : owners.parents) place->parent = parent;
  for (const auto& [module, place] : places) registry.add(*module, place);
  for (const Owner& owner : owners.list) mark(owner);
  wrap_all_slots(root, find);
}

// Removes the places of `modules`.
void remove(Module& root, const std::set<const Module*>& modules,
            std::optional<c10::Device> device) {
  Registry& registry = Registry::get();
  if (device) {
    *device = existing_device(*device);
    check_pipelines(root, nullptr, [](const Module&) { return true; });
  }
  const PlacePtr around = registry.place_around(root);
  const auto find = [&](const Module& module) {
    return modules.count(&module) ? PlacePtr() : registry.find(module);
  };
  const Owners owners = owners_of(root, around, find);
  if (device) {
    for (const Owner& owner : owners.list) {
      if (owner.place == around) set_device(owner.tensor, *device);
    }
  }
  for (const auto& [place, parent] : owners.parents) place->parent = parent;
  for (const Owner& owner : owners.list) {
    mark(owner);
    if (!owner.place) unmark_gradient(owner.tensor);
  }
  for (const Module* module : modules) {
    if (const PlacePtr place = registry.find(*module)) place->active = false;
    registry.entries.erase(module);
  }
  wrap_all_slots(root, find);
}

std::string list_of_names(const std::string& wanted,
                          const std::vector<Node>& nodes) {
  std::vector<std::string> names;
  for (const Node& node : nodes) names.push_back(node.name);
  return nearest_text(wanted, names);
}

PlacePtr new_place(const Devices& devices) {
  std::optional<c10::Device> output;
  if (devices.output) output = existing_device(*devices.output);
  return std::make_shared<Place>(existing_device(devices.processing), output);
}

}  // namespace

void parallelize(Module& module, const Devices& devices) {
  internal::check_claimed(kPlacementKey);
  Registry& registry = Registry::get();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  const PlacePtr place = registry.find(module);
  TORCH_CHECK_VALUE(!place, "the module '", module.name(),
                    "' is parallelized already (", place ? text_of(*place) : "",
                    "); call unparallelize_module() first");
  apply(module, {{&module, new_place(devices)}});
}

void parallelize(
    Module& root,
    const std::vector<std::pair<std::string, Devices>>& module_devices) {
  internal::check_claimed(kPlacementKey);
  Registry& registry = Registry::get();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  const std::vector<Node> nodes = nodes_of(root);
  for (const Node& node : nodes) {
    const PlacePtr place = registry.find(*node.module);
    TORCH_CHECK_VALUE(
        !place, "the module '", node.name, "' (", node.module->name(), ") of '",
        root.name(), "' is parallelized already (",
        place ? text_of(*place) : "", "); call unparallelize_pipeline() first");
  }

  std::map<Module*, PlacePtr> places;
  std::map<const Module*, std::string> named;
  for (const auto& [name, devices] : module_devices) {
    const auto node = std::ranges::find_if(
        nodes,
        [&, &name = name](const Node& each) { return each.name == name; });
    TORCH_CHECK_VALUE(node != nodes.end(), "'", root.name(),
                      "' has no module '", name, "'; the nearest are ",
                      list_of_names(name, nodes), " ('' is the root)");
    const auto [other, is_new] = named.emplace(node->module, name);
    TORCH_CHECK_VALUE(is_new, "the modules '", other->second, "' and '", name,
                      "' of '", root.name(),
                      "' are the same one; give it devices once");
    places.emplace(node->module, new_place(devices));
  }
  if (!places.empty()) apply(root, std::move(places));
}

void unparallelize(Module& module, std::optional<c10::Device> common_device) {
  const std::lock_guard<std::mutex> lock(Registry::get().mutex);
  remove(module, {&module}, common_device);
}

void unparallelize_all(Module& root, std::optional<c10::Device> common_device) {
  const std::lock_guard<std::mutex> lock(Registry::get().mutex);
  std::set<const Module*> all;
  for (const Node& node : nodes_of(root)) all.insert(node.module);
  remove(root, all, common_device);
}

PlacePtr place_of(const Module& module) {
  Registry& registry = Registry::get();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  return registry.find(module);
}

void restore(Module& root) {
  Registry& registry = Registry::get();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  const auto tensors = tensors_of(root);
  if (std::ranges::all_of(tensors, &Tag::of)) return;
  const auto find = [&](const Module& module) { return registry.find(module); };
  for (const Owner& owner :
       owners_of(root, registry.place_around(root), find).list) {
    if (owner.place && !Tag::of(owner.tensor)) {
      set_device(owner.tensor, owner.place->processing);
    }
    mark(owner);
  }
}

namespace {

bool is_placed(const Module& module) {
  if (place_of(module)) return true;
  for (const auto& child : module.children()) {
    if (child && is_placed(*child)) return true;
  }
  return false;
}

// Prints children in the same layout as LibTorch's own function, which is
// private.
void print(std::ostream& stream, const Module& module,
           const std::string& indentation) {
  module.pretty_print(stream);
  if (const PlacePtr place = place_of(module)) {
    stream << " [processing_device=" << place->processing;
    if (place->output) stream << ", output_device=" << *place->output;
    stream << "]";
  }
  const auto children = module.named_children();
  if (children.is_empty()) return;
  stream << "(\n";
  for (const auto& child : children) {
    stream << indentation << "  (" << child.key() << "): ";
    if (child.value()) print(stream, *child.value(), indentation + "  ");
    stream << "\n";
  }
  stream << indentation << ")";
}

}  // namespace

std::ostream& print_module(std::ostream& stream, const Module& module) {
  // This is LibTorch's operator, since placement.h is not included here.
  if (!is_placed(module)) return stream << module;
  print(stream, module, "");
  return stream;
}

}  // namespace gpipe::placement
