#include "gpipe/placement/witness.h"

#include <cstddef>
#include <utility>

namespace gpipe::placement {
namespace {

using torch::nn::Module;

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
  template <typename Other>
  bool operator!=(const Keeper<Other>& other) const {
    return kept != other.kept;
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

}  // namespace gpipe::placement
