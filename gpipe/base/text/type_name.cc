#include "gpipe/base/text/type_name.h"

#include <cstddef>

namespace gpipe {

std::string module_type_name(std::string type) {
  type = type.substr(0, type.find('<'));
  const std::size_t colon = type.rfind(':');
  if (colon != std::string::npos) type = type.substr(colon + 1);
  const std::string impl = "Impl";
  if (type.size() > impl.size() &&
      type.compare(type.size() - impl.size(), impl.size(), impl) == 0) {
    type.resize(type.size() - impl.size());
  }
  return type;
}

}  // namespace gpipe
