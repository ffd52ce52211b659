#include "gpipe/distributed/world/admission.h"

#include <c10/util/Exception.h>

#include <functional>
#include <stdexcept>
#include <string>

namespace gpipe::internal {
namespace {

std::shared_ptr<const Credentials> credentials_of(const WorldOptions& options) {
  try {
    return std::make_shared<Credentials>(
        Identity{options.secret, options.tls.certificate, options.tls.key,
                 options.tls.authority});
  } catch (const std::invalid_argument& error) {
    C10_THROW_ERROR(ValueError, error.what());
  }
}

std::function<void(const std::string&)> reporter_of(
    const WorldOptions& options) {
  if (options.on_refused) return options.on_refused;
  return [rank = options.rank](const std::string& line) {
    TORCH_WARN("rank ", rank, ": ", line);
  };
}

}  // namespace

Admission::Admission(const WorldOptions& options)
    : credentials(credentials_of(options)),
      refusals(std::make_shared<Refusals>(reporter_of(options))) {}

}  // namespace gpipe::internal
