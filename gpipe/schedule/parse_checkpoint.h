// The parser for flags with a checkpoint mode.
#pragma once

#include <string_view>

#include "gpipe/schedule/checkpoint.h"

namespace gpipe {

// Parses "always", "except_last" or "never". Throws std::invalid_argument,
// naming --checkpoint, for another text.
Checkpoint parse_checkpoint(std::string_view text);

}  // namespace gpipe
