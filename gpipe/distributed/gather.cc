#include "gpipe/distributed/gather.h"

#include "gpipe/distributed/world/communicator.h"
#include "gpipe/distributed/world/exchanges.h"

namespace gpipe {

std::vector<std::string> all_gather(World& world, const std::string& mine,
                                    const std::string& action) {
  return internal::all_gather(*internal::communicator_of(world),
                              internal::Tags(0).words, mine, action);
}

}  // namespace gpipe
