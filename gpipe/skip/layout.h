// The keys of skip tensors, and their routes between partitions, computed from
// what each layer declares. Pure data, without LibTorch.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gpipe {

// ---- The keys of skip tensors. A namespace and a name together identify one
// skip tensor.

// A namespace for names of skip tensors. With one namespace per use, a layer
// type can occur many times in a model (see Skippable::isolate).
//
// Each constructed namespace differs from all others. Copies are equal to the
// original. Namespaces are ordered by creation, and hashable. Threads:
// namespaces can be constructed and compared on any thread.
class Namespace {
 public:
  Namespace();

  // Returns the namespace of names that were never isolated.
  static Namespace none() { return Namespace(0); }

  // Converts a namespace to its number and back. A process numbers its
  // namespaces from 1 in the order of their construction, so processes that
  // build the same model have equal numbers. none() has the number 0.
  std::uint64_t number() const { return id_; }
  static Namespace of_number(std::uint64_t number) { return Namespace(number); }

  friend auto operator<=>(const Namespace&, const Namespace&) = default;
  // Returns a hash value that is equal for equal namespaces.
  std::size_t hash() const { return std::hash<std::uint64_t>()(id_); }

 private:
  explicit Namespace(std::uint64_t id) : id_(id) {}

  std::uint64_t id_;
};

// The key of one skip tensor of a model.
struct SkipKey {
  Namespace ns = Namespace::none();
  std::string name;

  friend auto operator<=>(const SkipKey&, const SkipKey&) = default;
};

}  // namespace gpipe

template <>
struct std::hash<gpipe::Namespace> {
  std::size_t operator()(const gpipe::Namespace& ns) const { return ns.hash(); }
};

namespace gpipe::internal {

// ---- The routes of skip tensors between partitions, computed from what each
// layer declares. Pure data, without LibTorch.

// The skip tensors that one layer declares to stash and to pop.
struct LayerSkips {
  std::string layer;  // name in the model, for messages
  std::vector<SkipKey> stash;
  std::vector<SkipKey> pop;
};

// A skip tensor that is stashed in partition `from` and popped in the later
// partition `to`. It is sent from `from` to `to` directly. `exported`,
// `imported`: its number among the routes from `from`, and among those to `to`,
// in the order of skip_routes().
struct SkipRoute {
  SkipKey key;
  int64_t from, to;
  int64_t exported = 0, imported = 0;
};

// Returns one line for each mismatch of stashes and pops, in layer order; empty
// if all match. A name must be stashed once and popped once, and the popping
// layer must come after the stashing layer.
std::vector<std::string> skip_mismatches(const std::vector<LayerSkips>& layers);

// Returns the routes that cross partitions under `balance`, ordered by
// destination, then by source, then by the order of stashing. `balance`: layers
// per partition; the sum must be layers.size(). `layers` must have no
// mismatches (see skip_mismatches()).
std::vector<SkipRoute> skip_routes(const std::vector<LayerSkips>& layers,
                                   const std::vector<int64_t>& balance);

}  // namespace gpipe::internal
