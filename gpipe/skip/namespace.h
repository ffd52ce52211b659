// Names of skip tensors: a namespace and a name together say which one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>

namespace gpipe {

// Keeps apart skip tensors of the same name, so that one layer type can be
// used many times in a model (see Skippable::isolate).
//
// Every constructed namespace differs from every other; copies are equal to
// their original. Ordered by creation, and hashable. Threads: constructing
// and comparing are safe from anywhere.
class Namespace {
 public:
  Namespace();

  // The namespace of names that were never isolated.
  static Namespace none() { return Namespace(0); }

  // Namespaces count from 1 in the order in which a process makes them, so that
  // processes that build the same model have the same.
  std::uint64_t number() const { return id_; }
  static Namespace of_number(std::uint64_t number) { return Namespace(number); }

  friend bool operator==(const Namespace& a, const Namespace& b) {
    return a.id_ == b.id_;
  }
  friend bool operator!=(const Namespace& a, const Namespace& b) {
    return a.id_ != b.id_;
  }
  friend bool operator<(const Namespace& a, const Namespace& b) {
    return a.id_ < b.id_;
  }
  // Equal for equal namespaces.
  std::size_t hash() const { return std::hash<std::uint64_t>()(id_); }

 private:
  explicit Namespace(std::uint64_t id) : id_(id) {}

  std::uint64_t id_;
};

// Identifies one skip tensor of a model.
struct SkipKey {
  Namespace ns = Namespace::none();
  std::string name;

  friend bool operator==(const SkipKey& a, const SkipKey& b) {
    return a.ns == b.ns && a.name == b.name;
  }
  friend bool operator<(const SkipKey& a, const SkipKey& b) {
    return std::tie(a.ns, a.name) < std::tie(b.ns, b.name);
  }
};

}  // namespace gpipe

template <>
struct std::hash<gpipe::Namespace> {
  std::size_t operator()(const gpipe::Namespace& ns) const { return ns.hash(); }
};
