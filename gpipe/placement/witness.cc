#include "gpipe/placement/witness.h"

#include <cstddef>
#include <utility>

namespace gpipe::placement {
namespace {

using torch::nn::Module;

// An allocator that keeps something as long as there is memory of its to be
// given back.
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
  template <typename Other>
  bool operator!=(const Keeper<Other>& other) const {
    return kept != other.kept;
  }

  std::shared_ptr<const void> kept;
};

}  // namespace

Witness::Witness(const Module& module) : life_(module.weak_from_this()) {
  if (lives()) return;
  // Nobody to ask. But the module has a weak_ptr to itself (it is an
  // enable_shared_from_this), which any shared_ptr to it sets. One that owns
  // nothing and is gone at once leaves its control block to that weak_ptr, so
  // that the block's memory, and with it the allocator, ends with the module.
  const auto life = std::make_shared<char>();
  life_ = life;
  const std::shared_ptr<const Module> gone_at_once(
      &module, [](const Module*) {}, Keeper<char>(life));
}

}  // namespace gpipe::placement
