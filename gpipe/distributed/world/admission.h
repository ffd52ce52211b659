// Who may take part in a world.
#pragma once

#include <memory>

#include "gpipe/distributed/links/credentials.h"
#include "gpipe/distributed/links/refusals.h"
#include "gpipe/distributed/world/world_options.h"

namespace gpipe::internal {

// What this rank asks of every connection, and those that it has refused.
struct Admission {
  // Throws c10::ValueError if the secret or the certificate cannot be used.
  explicit Admission(const WorldOptions& options);

  std::shared_ptr<const Credentials> credentials;
  std::shared_ptr<Refusals> refusals;
};

}  // namespace gpipe::internal
