#include "models/exported/region_scope.h"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>

namespace gpipe::exported {

namespace autocast = at::autocast;

void RegionScope::enter(const Region& region) {
  leave();
  if (!region.no_grad && !region.autocast) return;
  inside_ = true;
  grad_ = c10::GradMode::is_enabled();
  if (region.no_grad) c10::GradMode::set_enabled(false);
  // Meta devices have no autocast: results keep the dtype of their inputs.
  if (!region.autocast || !autocast::is_autocast_available(device_)) return;
  autocast_ = true;
  enabled_ = autocast::is_autocast_enabled(device_);
  dtype_ = autocast::get_autocast_dtype(device_);
  cache_ = autocast::is_autocast_cache_enabled();
  autocast::set_autocast_enabled(device_, region.autocast->enabled);
  if (region.autocast->dtype) {
    autocast::set_autocast_dtype(device_, *region.autocast->dtype);
  }
  autocast::set_autocast_cache_enabled(region.autocast->cache);
  autocast::increment_nesting();
}

void RegionScope::leave() {
  if (!inside_) return;
  inside_ = false;
  c10::GradMode::set_enabled(grad_);
  if (!autocast_) return;
  autocast_ = false;
  // As Python's context manager: only the outermost region drops the casts.
  if (autocast::decrement_nesting() == 0) autocast::clear_cache();
  autocast::set_autocast_enabled(device_, enabled_);
  autocast::set_autocast_dtype(device_, dtype_);
  autocast::set_autocast_cache_enabled(cache_);
}

}  // namespace gpipe::exported
