#include "gpipe/skip/skippable.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <utility>

namespace gpipe::internal {
namespace {

thread_local SkipTracker* scoped = nullptr;

}  // namespace

void SkipTracker::throw_not_stashed(const SkipKey& key) {
  TORCH_CHECK(false, "'", key.name, "' has not been stashed");
}

void MapSkipTracker::save(const SkipKey& key,
                          std::optional<at::Tensor> tensor) {
  tensors_[key] = std::move(tensor);
}

std::optional<at::Tensor> MapSkipTracker::load(const SkipKey& key) {
  auto node = tensors_.extract(key);
  if (node.empty()) throw_not_stashed(key);
  return std::move(node.mapped());
}

SkipTracker& current_skip_tracker() {
  if (scoped) return *scoped;
  // Constructed on first use: threads without skip tensors pay nothing, and the
  // only object left to destroy at thread exit is this thread's map.
  thread_local MapSkipTracker own;
  return own;
}

UseSkipTracker::UseSkipTracker(SkipTracker& tracker)
    : previous_(std::exchange(scoped, &tracker)) {}

UseSkipTracker::~UseSkipTracker() { scoped = previous_; }

}  // namespace gpipe::internal

namespace gpipe {
namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

Skippable::Skippable(Names names) : names_(std::move(names)) {}

void Skippable::declare(const Names& more) {
  names_.stash.insert(names_.stash.end(), more.stash.begin(), more.stash.end());
  names_.pop.insert(names_.pop.end(), more.pop.begin(), more.pop.end());
}

void Skippable::isolate(const Namespace& ns) {
  isolate(ns, names_.stash);
  isolate(ns, names_.pop);
}

void Skippable::isolate(const Namespace& ns,
                        const std::vector<std::string>& only) {
  for (const std::string& name : only) {
    TORCH_CHECK(contains(names_.stash, name) || contains(names_.pop, name), "'",
                name, "' cannot be isolated: it has been declared ",
                "neither as stashable nor as poppable");
    namespaces_.insert_or_assign(name, ns);
  }
}

SkipKey Skippable::key_of(const std::string& name) const {
  auto found = namespaces_.find(name);
  return {found == namespaces_.end() ? Namespace::none() : found->second, name};
}

std::vector<SkipKey> Skippable::stashable() const {
  std::vector<SkipKey> keys;
  for (const std::string& name : names_.stash) keys.push_back(key_of(name));
  return keys;
}

std::vector<SkipKey> Skippable::poppable() const {
  std::vector<SkipKey> keys;
  for (const std::string& name : names_.pop) keys.push_back(key_of(name));
  return keys;
}

void Skippable::stash(const std::string& name,
                      std::optional<at::Tensor> tensor) {
  TORCH_CHECK(contains(names_.stash, name), "'", name,
              "' has not been declared as stashable");
  if (tensor && !tensor->defined()) tensor = std::nullopt;
  internal::current_skip_tracker().save(key_of(name), std::move(tensor));
}

std::optional<at::Tensor> Skippable::pop(const std::string& name) {
  TORCH_CHECK(contains(names_.pop, name), "'", name,
              "' has not been declared as poppable");
  return internal::current_skip_tracker().load(key_of(name));
}

namespace {

// Adds the skip tensors of `module` and its submodules to `skips`, except those
// of nested pipelines, which move their own skip tensors.
void add_skips(const torch::nn::Module& module, internal::LayerSkips& skips) {
  if (dynamic_cast<const internal::KeepsDevices*>(&module)) return;
  if (const auto* skippable = dynamic_cast<const Skippable*>(&module)) {
    for (SkipKey& key : skippable->stashable()) {
      skips.stash.push_back(std::move(key));
    }
    for (SkipKey& key : skippable->poppable()) {
      skips.pop.push_back(std::move(key));
    }
  }
  for (const auto& child : module.children()) add_skips(*child, skips);
}

}  // namespace

std::vector<internal::LayerSkips> internal::declared_skips(
    const torch::nn::Sequential& module) {
  std::vector<internal::LayerSkips> layers;
  for (const auto& child : module->named_children()) {
    internal::LayerSkips skips;
    skips.layer = child.key();
    add_skips(*child.value(), skips);
    layers.push_back(std::move(skips));
  }
  return layers;
}

void verify_skippables(torch::nn::Sequential module) {
  internal::verify_skips(internal::declared_skips(module));
}

void internal::verify_skips(const std::vector<internal::LayerSkips>& layers) {
  const auto problems = internal::skip_mismatches(layers);
  if (problems.empty()) return;
  std::string text = "one or more pairs of stash and pop do not match:\n";
  for (const std::string& problem : problems) text += "\n* " + problem;
  TORCH_CHECK_TYPE(false, text);
}

}  // namespace gpipe
