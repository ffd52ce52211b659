#include "gpipe/distributed/world_options.h"

#include <cstdlib>
#include <string>

#include "gpipe/base/text/refuse.h"
#include "gpipe/distributed/environment.h"

namespace gpipe {
namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

// A run that asks for what there is no more must not start without it.
void refuse_secrets() {
  for (const char* const name : {"GPIPE_SECRET_FILE", "GPIPE_TLS_CERTIFICATE",
                                 "GPIPE_TLS_KEY", "GPIPE_TLS_AUTHORITY"}) {
    if (variable(name).empty()) continue;
    internal::refuse(name,
                     " is set, but connections between ranks are not "
                     "encrypted, and whoever reaches their ports can take "
                     "part: unset it, and keep others out by the network "
                     "(docs/security.md)");
  }
}

}  // namespace

WorldOptions WorldOptions::from_environment() {
  const LaunchEnvironment found = read_environment();
  WorldOptions options;
  options.rank = found.rank;
  options.size = found.world_size;
  options.local_rank = found.local_rank;
  options.address = found.master_address;
  options.port = found.master_port;
  options.store_is_served = found.store_is_served;
  const std::string backend = variable("GPIPE_BACKEND");
  if (!backend.empty()) options.backend = backend;
  refuse_secrets();
  return options;
}

}  // namespace gpipe
