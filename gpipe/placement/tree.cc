#include "gpipe/placement/tree.h"

#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "gpipe/libtorch/registration.h"
#include "gpipe/placement/device.h"
#include "gpipe/placement/names.h"
#include "gpipe/placement/nodes.h"
#include "gpipe/placement/set_device.h"
#include "gpipe/placement/slots.h"
#include "gpipe/placement/tag.h"
#include "gpipe/placement/witness.h"
#include "gpipe/skip/keeps_devices.h"

namespace gpipe::placement {
namespace {

using torch::nn::Module;

// Returns whether a tensor of the module is tagged with `place`, which is
// active, or with a place inside it.
bool is_marked_by(const Module& module, const PlacePtr& place) {
  const auto tensors = tensors_of(module);
  return std::ranges::any_of(tensors, [&](const at::Tensor& each) {
    const Tag* const tag = tag_of(each);
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

std::string type_of(const Module& module) { return module.name(); }

std::string text_of(const Place& place) {
  std::string text = place.processing.str();
  if (place.output) text += " -> " + place.output->str();
  return text;
}

Devices existing(const Devices& devices) {
  Devices result{existing_device(devices.processing), std::nullopt};
  if (devices.output) result.output = existing_device(*devices.output);
  return result;
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
  const Tag* const tag = tag_of(owner.tensor);
  if (!owner.place) {
    remove_tag(owner.tensor);
  } else if (!tag || tag->place != owner.place || tag->direct != owner.direct ||
             tag->kind != Tag::Kind::kWeight) {
    TORCH_CHECK_TYPE(
        set_tag(owner.tensor,
                c10::make_intrusive<Tag>(owner.place, Tag::Kind::kWeight,
                                         owner.direct)),
        "a parameter on ", owner.tensor.device(),
        " cannot be placed: its backend keeps data of its own in its tensors "
        "(BackendMeta)");
  }
}

void unmark_gradient(const at::Tensor& tensor) {
  const at::Tensor& gradient = tensor.grad();
  if (gradient.defined()) remove_tag(gradient);
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
                      type_of(*pipeline.module), ") of '", type_of(root),
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
  return std::make_shared<Place>(devices.processing, devices.output);
}

}  // namespace

void parallelize(Module& module, const Devices& devices) {
  internal::check_claimed(kPlacementKey);
  Registry& registry = Registry::get();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  const PlacePtr place = registry.find(module);
  TORCH_CHECK_VALUE(!place, "the module '", type_of(module),
                    "' is parallelized already (", place ? text_of(*place) : "",
                    "); call unparallelize_module() first");
  apply(module, {{&module, new_place(existing(devices))}});
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
        !place, "the module '", node.name, "' (", type_of(*node.module),
        ") of '", type_of(root), "' is parallelized already (",
        place ? text_of(*place) : "", "); call unparallelize_pipeline() first");
  }

  std::map<Module*, PlacePtr> places;
  std::map<const Module*, std::string> named;
  for (const auto& [name, devices] : module_devices) {
    const auto node = std::ranges::find_if(
        nodes,
        [&, &name = name](const Node& each) { return each.name == name; });
    TORCH_CHECK_VALUE(node != nodes.end(), "'", type_of(root),
                      "' has no module '", name, "'; the nearest are ",
                      list_of_names(name, nodes), " ('' is the root)");
    const auto [other, is_new] = named.emplace(node->module, name);
    TORCH_CHECK_VALUE(is_new, "the modules '", other->second, "' and '", name,
                      "' of '", type_of(root),
                      "' are the same one; give it devices once");
    places.emplace(node->module, new_place(existing(devices)));
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
  if (std::ranges::all_of(tensors, tag_of)) return;
  const auto find = [&](const Module& module) { return registry.find(module); };
  for (const Owner& owner :
       owners_of(root, registry.place_around(root), find).list) {
    if (owner.place && !tag_of(owner.tensor)) {
      set_device(owner.tensor, owner.place->processing);
    }
    mark(owner);
  }
}

}  // namespace gpipe::placement
