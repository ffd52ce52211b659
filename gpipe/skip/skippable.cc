#include "gpipe/skip/skippable.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "gpipe/skip/tracker.h"

namespace gpipe {
namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

Skippable::Skippable(Names names) : names_(std::move(names)) {}

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

}  // namespace gpipe
