// Whether all ranks were given the same.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "gpipe/distributed/world.h"

namespace gpipe {

// What must be equal, as text: {"balance", "[2, 2]"}, in an order that begins
// with what explains the rest.
using Terms = std::vector<std::pair<std::string, std::string>>;

// Returns once all ranks have called. Else every one of them throws a PeerError
// that names the first term that differs, whose it is and both values.
void agree(World& world, int tag, const Terms& terms);

}  // namespace gpipe
