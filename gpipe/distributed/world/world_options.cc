#include "gpipe/distributed/world/world_options.h"

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "gpipe/distributed/world/environment.h"
#include "gpipe/text/refuse.h"

namespace gpipe {
namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

std::string read_secret() {
  const std::string path = variable("GPIPE_SECRET_FILE");
  if (path.empty()) return "";
  std::ifstream file(path, std::ios::binary);
  std::string secret{std::istreambuf_iterator<char>(file), {}};
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) {
    secret.pop_back();
  }
  if (secret.empty()) {
    internal::refuse("GPIPE_SECRET_FILE is '", path, "', which ",
                     file.is_open() ? "is empty" : "cannot be read",
                     ": make it with `openssl rand -hex 32 > FILE`, readable "
                     "for the users of the ranks only");
  }
  return secret;
}

bool read_shares_memory() {
  const std::string text = variable("GPIPE_SHARED_MEMORY");
  if (text != "" && text != "0" && text != "1") {
    internal::refuse("GPIPE_SHARED_MEMORY is '", text,
                     "': set it to 0, so that ranks of one machine use sockets "
                     "only, or to 1, or leave it unset");
  }
  return text != "0";
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
  options.shares_memory = read_shares_memory();
  options.secret = read_secret();
  options.tls = {variable("GPIPE_TLS_CERTIFICATE"), variable("GPIPE_TLS_KEY"),
                 variable("GPIPE_TLS_AUTHORITY")};
  return options;
}

}  // namespace gpipe
