#include "gpipe/distributed/world/world_options.h"

#include "gpipe/distributed/world/environment.h"

namespace gpipe {

WorldOptions WorldOptions::from_environment() {
  const LaunchEnvironment found = read_environment();
  WorldOptions options;
  options.rank = found.rank;
  options.size = found.world_size;
  options.local_rank = found.local_rank;
  options.address = found.master_address;
  options.port = found.master_port;
  options.store_is_served = found.store_is_served;
  options.session = found.attempt;
  return options;
}

}  // namespace gpipe
