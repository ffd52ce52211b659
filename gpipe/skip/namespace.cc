#include "gpipe/skip/namespace.h"

#include <atomic>

namespace gpipe {

Namespace::Namespace() {
  static std::atomic<std::uint64_t> last{0};
  id_ = ++last;
}

}  // namespace gpipe
